// Small repairs of what ipywidgets (drawn without a kernel by vendor/widgets/embed.js) and MathJax leave open.

addEventListener("DOMContentLoaded", () => {
  // ipywidgets calls MathJax 2, the page has MathJax 3.
  if (window.MathJax) {
    MathJax.Hub = { Queue: ([, , element]) => MathJax.startup.promise.then(() => MathJax.typesetPromise([element])) };
  }

  // ipywidgets gives its sliders and their readouts no accessible name, and tells a choice by its index.
  function nameControls(output) {
    for (const widget of output.querySelectorAll(".widget-slider")) {
      const label = widget.querySelector(".widget-label")?.textContent.trim() || "Slider";
      const readout = widget.querySelector(".widget-readout");
      readout?.setAttribute("aria-label", `${label}, value`);
      for (const handle of widget.querySelectorAll("[role=slider]")) {
        handle.setAttribute("aria-label", label);
        if (readout) handle.setAttribute("aria-valuetext", readout.textContent);  // its own is a bare index
      }
    }
    for (const button of output.querySelectorAll(".widget-play button")) {
      const icon = button.querySelector("i")?.className.match(/fa-(\w+)/)?.[1] ?? "play";
      button.setAttribute("aria-label", icon);
    }
  }

  for (const output of document.querySelectorAll(".cell_output")) {
    new MutationObserver(() => nameControls(output)).observe(output, { childList: true, subtree: true });
  }

  // An equation wider than the page scrolls: the keyboard must be able to get there.
  const wideEquations = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  document.querySelectorAll("div.math").forEach((equation) => wideEquations.observe(equation));
});
