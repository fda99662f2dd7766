"""Drive the built book in a browser, served under a sub-path as on GitHub Pages and cut off from every other host."""

import gzip
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from bs4 import BeautifulSoup
from chromium import BROWSER, chromium
from playwright.sync_api import Browser, Page, Route

ROOT = Path(__file__).parents[1]
SITE = ROOT / "_build" / "html"
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
PREFIX = "/some/book/"

PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.glob("chapters/*.html"))
if not PAGES:
    pytest.skip("the book is not built: make book", allow_module_level=True)
if not BROWSER:
    pytest.skip("no Chromium or Chrome on this machine", allow_module_level=True)

LARGEST_PAGE = 2_500_000  # bytes, transferred
THEME_VIOLATIONS = {"label-content-name-mismatch", "region"}  # the theme's own, as axe names them


class Handler(SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        path = unquote(urlsplit(path).path)
        return str(SITE / path.removeprefix(PREFIX)) if path.startswith(PREFIX) else str(SITE / "outside the sub-path")

    def log_message(self, *_):
        pass


@dataclass
class Visit:
    """One page, opened and scrolled through, and what went over the wire and wrong on the way."""

    page: Page
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    requested: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
    server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module", params=PAGES)
def visit(request, browser: Browser, address: str) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    visit = Visit(context.new_page())

    def let_through(route: Route) -> None:
        if route.request.url.startswith(address):
            visit.requested.add(urlsplit(route.request.url).path.removeprefix(PREFIX))
            route.continue_()
        else:
            visit.foreign.append(route.request.url)
            route.abort()

    context.route("**/*", let_through)
    visit.page.on("pageerror", lambda error: visit.errors.append(str(error)))
    visit.page.on("console", lambda message: message.type == "error" and visit.errors.append(message.text))
    visit.page.on(
        "response", lambda answer: answer.status >= 400 and visit.errors.append(f"{answer.status} {answer.url}")
    )
    visit.page.goto(address + request.param)
    for figure in visit.page.locator(".plotly-figure").all():
        figure.scroll_into_view_if_needed()
        figure.locator(".plotly-controls > *").first.or_(figure.locator(".main-svg").first).first.wait_for()
    visit.page.wait_for_load_state("networkidle")
    yield visit
    context.close()


@cache
def parsed(path: str) -> BeautifulSoup:
    return BeautifulSoup((SITE / path).read_text(encoding="utf-8"), "html.parser")


def test_the_page_reports_no_error(visit: Visit):
    assert not visit.errors


def test_the_page_asks_nothing_of_another_host(visit: Visit):
    assert not visit.foreign


def test_the_page_is_light_enough(visit: Visit):
    sizes = {path: len(gzip.compress((SITE / path).read_bytes())) for path in visit.requested}
    assert sum(sizes.values()) <= LARGEST_PAGE, sizes


@pytest.mark.parametrize("path", PAGES)
def test_every_internal_link_and_file_exists(path: str):
    targets = [element["href"] for element in parsed(path).select("a[href], link[href]")]
    targets += [element["src"] for element in parsed(path).select("img[src], script[src]")]
    for target in targets:
        parts = urlsplit(urljoin(path, target))
        if parts.scheme or target in ("#", ""):
            continue
        assert (SITE / unquote(parts.path)).is_file(), target
        if parts.fragment and parts.path.endswith(".html"):
            assert parsed(unquote(parts.path)).find(id=unquote(parts.fragment)), target


def test_every_image_has_a_text_alternative(visit: Visit):
    for image in visit.page.locator("img").all():
        alternative = image.get_attribute("alt") or ""
        assert alternative.strip(), image.evaluate("image => image.outerHTML.slice(0, 200)")
        assert not re.search(r"[\w/]\.(png|svg|jpe?g)$|^_images", alternative), alternative


def test_no_markup_is_left_unrendered(visit: Visit):
    text = visit.page.evaluate("""async () => {
        await window.MathJax?.startup?.promise;
        const article = document.querySelector("article").cloneNode(true);
        article.querySelectorAll("pre, code, script, mjx-container").forEach(element => element.remove());
        return article.textContent;
    }""")
    assert not re.search(r"\\[(\[]|\$[^$\n]+\$|:::|\{[\w:-]+\}`", text)
    assert not visit.page.locator("[data-mjx-error], mjx-merror").count()


def test_axe_finds_nothing_serious(visit: Visit):
    visit.page.add_script_tag(path=AXE)
    violations = visit.page.evaluate("axe.run().then(({violations}) => violations)")
    serious = {
        violation["id"]: [node["html"][:200] for node in violation["nodes"]]
        for violation in violations
        if violation["impact"] in ("serious", "critical") and violation["id"] not in THEME_VIOLATIONS
    }
    assert not serious


def test_a_phone_scrolls_down_only(visit: Visit):
    visit.page.set_viewport_size({"width": 360, "height": 740})
    visit.page.wait_for_timeout(500)  # plotly follows the new width
    width = visit.page.evaluate("document.documentElement.scrollWidth")
    visit.page.set_viewport_size({"width": 1200, "height": 900})
    assert width <= 360


def picture(visit: Visit, figure) -> bytes:
    """The figure as it stands once it has come to rest."""
    shot = figure.screenshot()
    for _ in range(20):
        visit.page.wait_for_timeout(150)
        if (later := figure.screenshot()) == shot:
            return shot
        shot = later
    raise AssertionError("the figure never comes to rest")


def test_plotly_sliders_answer_the_keyboard(visit: Visit):
    for figure in visit.page.locator(".plotly-figure").all():
        plot = figure.locator(".plotly-plot")
        for slider in figure.locator("input[type=range]").all():
            slider.focus()
            before, told = picture(visit, plot), slider.get_attribute("aria-valuetext")
            slider.press("ArrowRight" if slider.input_value() != slider.get_attribute("max") else "ArrowLeft")
            assert slider.get_attribute("aria-valuetext") != told
            assert picture(visit, plot) != before


def test_play_moves_the_slider(visit: Visit):
    for figure in visit.page.locator(".plotly-figure:has(.plotly-controls button[type=button])").all():
        slider = figure.locator("input[type=range]")
        slider.press("Home")
        figure.get_by_role("button", name="Play").click()
        visit.page.wait_for_function("slider => slider.value > 0", arg=slider.element_handle())
        figure.get_by_role("button", name="Pause").click()


def test_widget_sliders_answer_the_keyboard(visit: Visit):
    visible = """output => [...output.querySelectorAll("img, svg, .widget-html")]
        .filter(element => element.offsetParent).map(element => element.outerHTML).join()"""
    for handle in visit.page.locator(".cell_output [role=slider]").all():
        output = handle.locator("xpath=ancestor::*[contains(@class, 'cell_output')]")
        before = output.evaluate(visible)
        handle.press("ArrowRight")
        visit.page.wait_for_timeout(200)
        assert handle.get_attribute("aria-label")
        assert output.evaluate(visible) != before


def test_figures_follow_the_theme(visit: Visit):
    ink = "() => [...document.querySelectorAll('.plotly-plot')].map(plot => plot._fullLayout.font.color)"
    light = visit.page.evaluate(ink)
    switch = visit.page.locator(".theme-switch-button").first
    while visit.page.evaluate("document.documentElement.dataset.theme") != "dark":
        switch.click()
    visit.page.wait_for_timeout(500)
    dark = visit.page.evaluate(ink)
    while visit.page.evaluate("document.documentElement.dataset.theme") != "light":
        switch.click()
    assert all(before != after for before, after in zip(light, dark, strict=True))


def test_figures_leave_a_still_image_for_print(visit: Visit):
    for still in visit.page.locator(".plotly-still").all():
        visit.page.wait_for_function("image => image.naturalWidth > 0", arg=still.element_handle())
        visit.page.emulate_media(media="print")
        assert still.is_visible()
        visit.page.emulate_media(media="screen")


def test_links_to_works_and_statements_have_previews(visit: Visit):
    preview = visit.page.locator("#link-preview")
    statements = {f"#{element['id']}" for path in PAGES for element in parsed(path).select(".statement[id]")}
    for link in visit.page.locator("article a[href]").all():
        fragment = "#" + urlsplit(link.get_attribute("href")).fragment
        if link.is_visible() and (fragment in statements or link.get_attribute("data-citation")):
            link.focus()
            preview.wait_for(state="visible")
            assert preview.inner_text().strip()
            link.blur()
            preview.wait_for(state="hidden")
