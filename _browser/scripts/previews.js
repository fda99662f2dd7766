// Shows what a link leads to, on hover and on keyboard focus: a cited work (the build put the citation into the
// link's title) or a theorem, definition, … of this page or of another.
(() => {
  const article = document.querySelector("article");
  if (!article) return;  // the search page

  const preview = document.createElement("div");
  Object.assign(preview, { id: "link-preview", role: "tooltip", hidden: true });
  document.body.append(preview);

  // The browser would show a title beside the preview, and only on hover.
  for (const link of article.querySelectorAll("a.external[title]")) {
    link.setAttribute("aria-description", link.title);
    link.dataset.citation = link.title;
    link.removeAttribute("title");
  }

  const pages = new Map([[location.pathname, Promise.resolve(document)]]);
  function loadPage(path) {
    if (!pages.has(path)) {
      pages.set(path, fetch(path).then((answer) => answer.text())
        .then((text) => new DOMParser().parseFromString(text, "text/html"))
        .catch(() => document.implementation.createHTMLDocument()));  // a page opened from a file may not read others
    }
    return pages.get(path);
  }

  async function content(link) {
    if (link.dataset.citation) return document.createTextNode(link.dataset.citation);
    if (link.origin !== location.origin || !link.hash) return null;
    const target = (await loadPage(link.pathname)).getElementById(decodeURIComponent(link.hash.slice(1)));
    if (!target?.matches(".statement")) return null;
    const copy = document.importNode(target, true);
    copy.removeAttribute("id");
    return copy;
  }

  let current;
  async function show(link) {
    current = link;
    const shown = await content(link);
    if (!shown || current !== link) return;
    preview.replaceChildren(shown);
    preview.hidden = false;
    if (link.pathname !== location.pathname) await window.MathJax?.typesetPromise?.([preview]);
    link.setAttribute("aria-describedby", preview.id);
    place(link.getBoundingClientRect());
  }

  // Below the link, or above it where there is more room; always inside the window's width.
  function place({ left, top, bottom }) {
    const { offsetWidth, offsetHeight } = preview;
    const above = bottom + offsetHeight > innerHeight && top > innerHeight - bottom;
    preview.style.left = `${Math.max(8, Math.min(left, innerWidth - offsetWidth - 8))}px`;
    preview.style.top = `${scrollY + (above ? top - offsetHeight - 4 : bottom + 4)}px`;
  }

  function hide() {
    current?.removeAttribute("aria-describedby");
    current = null;
    preview.hidden = true;
  }

  for (const link of article.querySelectorAll("a[href]")) {
    for (const event of ["mouseenter", "focus"]) link.addEventListener(event, () => show(link));
    for (const event of ["mouseleave", "blur"]) link.addEventListener(event, hide);
  }
  addEventListener("keydown", ({ key }) => { if (key === "Escape") hide(); });
})();
