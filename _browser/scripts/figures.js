// Draws the page's plotly figures: each when it nears the viewport, in the colours of the page's theme,
// and with sliders and buttons that a keyboard and a screen reader can use (plotly's own cannot be reached by either).
(() => {
  const page = document.documentElement;
  const plotlyAddress = new URL(`${page.dataset.content_root}vendor/plotly.js`, location.href);
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

  let loading;
  function loadPlotly() {
    loading ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      Object.assign(script, { src: plotlyAddress, onload: () => resolve(window.Plotly), onerror: reject });
      document.head.append(script);
    });
    return loading;
  }

  // A figure's own colours suit a notebook, which has no theme that it could follow.
  function inColours(ink, grid, { template, ...layout }) {
    const transparent = "rgba(0,0,0,0)";
    const axis = (own) => ({ showbackground: false, ...own, color: ink, gridcolor: grid, zerolinecolor: grid });
    const inScene = ({ xaxis, yaxis, zaxis, ...own } = {}) =>
      ({ ...own, bgcolor: transparent, xaxis: axis(xaxis), yaxis: axis(yaxis), zaxis: axis(zaxis) });
    return {
      ...layout, paper_bgcolor: transparent, plot_bgcolor: transparent, font: { ...layout.font, color: ink },
      xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis), scene: inScene(layout.scene),
    };
  }

  function inPageColours(layout) {
    const colour = (name) => getComputedStyle(page).getPropertyValue(name).trim();
    return inColours(colour("--pst-color-text-base"), colour("--pst-color-border"), layout);
  }

  // A slider's step and a button both name a function of plotly and its arguments.
  function perform(plot, { method, args }) {
    if (method === "animate" && reducedMotion.matches) {
      args = [args[0], { ...args[1], transition: { duration: 0 } }];
    }
    // Plotly rejects the promise of an animation that the next one interrupts: nothing is wrong.
    Plotly[method](plot, ...args).catch(() => {});
  }

  function sliderControl(plot, { steps, active = 0, currentvalue }) {
    const label = document.createElement("label");
    const input = document.createElement("input");
    const output = document.createElement("output");
    Object.assign(input, { type: "range", min: 0, max: steps.length - 1, value: active });
    const tell = () => {
      output.value = steps[input.value].label;
      input.setAttribute("aria-valuetext", output.value);
    };
    input.addEventListener("input", () => { tell(); perform(plot, steps[input.value]); });
    plot.on("plotly_animatingframe", ({ name }) => {  // while the figure plays
      const step = steps.findIndex(({ args }) => args[0]?.[0] === name);
      if (step >= 0) { input.value = step; tell(); }
    });
    tell();
    label.append(currentvalue?.prefix?.trim() || "Step", input, output);
    return label;
  }

  function buttonControl(plot, action) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = action.label;
    button.addEventListener("click", () => perform(plot, action));
    return button;
  }

  // Paper has no script: an image in dark ink waits for the printer, redrawn whenever the figure has come to rest.
  function keepStillImage(plot, image) {
    let timer;
    const redraw = async () => {
      if (!plot.clientHeight) return;  // hidden for print: the last image is the one that shows
      const figure = { data: plot.data, layout: inColours("#222", "#bbb", plot.layout) };
      image.src = await Plotly.toImage(figure, { format: "png", width: 800, height: plot.clientHeight });
    };
    const schedule = () => { clearTimeout(timer); timer = setTimeout(redraw, 800); };
    for (const event of ["plotly_relayout", "plotly_restyle", "plotly_animated", "plotly_react"]) plot.on(event, schedule);
    schedule();
  }

  async function draw(figure) {
    const { data, layout, frames } = JSON.parse(figure.querySelector("script").textContent);
    const { sliders = [], updatemenus = [], width, height, ...rest } = layout;  // the page gives the width
    const plot = document.createElement("div");
    const still = document.createElement("img");
    const controls = document.createElement("div");
    plot.className = "plotly-plot";
    if (height) plot.style.height = `${height}px`;
    controls.className = "plotly-controls";
    Object.assign(still, { className: "plotly-still", alt: figure.getAttribute("aria-label") });
    figure.append(plot, still, controls);

    await loadPlotly();
    await Plotly.newPlot(plot, {
      data, frames, layout: inPageColours(rest), config: { responsive: true, displaylogo: false },
    });
    controls.append(...updatemenus.flatMap((menu) => menu.buttons.map((button) => buttonControl(plot, button))));
    controls.append(...sliders.map((slider) => sliderControl(plot, slider)));
    if (layout.meta?.scene) controls.append(explore(plot));  // explorables.js
    keepStillImage(plot, still);
    new MutationObserver(() => Plotly.react(plot, plot.data, inPageColours(plot.layout)))
      .observe(page, { attributes: true, attributeFilter: ["data-theme"] });
  }

  const nearViewport = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) start(target);
  }, { rootMargin: "400px" });

  function start(figure) {
    nearViewport.unobserve(figure);
    if (!figure.dataset.started) draw(figure);
    figure.dataset.started = true;
  }

  const figures = document.querySelectorAll(".plotly-figure");
  figures.forEach((figure) => nearViewport.observe(figure));
  addEventListener("beforeprint", () => figures.forEach(start));
})();
