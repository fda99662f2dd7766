"""Scenes with several sliders say what they show, and a browser computes in them what numpy computes here.

The browser is given what a notebook is given, with Plotly's host answered from Plotly's own package.
"""

import json
import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import urlsplit

import numpy as np
import pytest
from chromium import BROWSER, chromium
from IPython.core.formatters import DisplayFormatter
from playwright.sync_api import Browser, Frame, Route
from plotly.offline import get_plotlyjs

from norm_geometry import explorables, norms

SCENES = {"ellipsoid": explorables.ellipsoid, "half_plane": explorables.half_plane}
X = np.array([-0.5, 0.3, 2.4])


@pytest.fixture(params=SCENES)
def scene(request) -> explorables.Explorable:
    return SCENES[request.param]()


def test_a_notebook_and_the_book_each_find_their_form(scene):
    bundle, _ = DisplayFormatter().format(scene)
    assert len(bundle["text/plain"]) > 40
    assert bundle["text/plain"] == scene.figure.layout.meta["alt"]
    assert f'title="{scene!r}"' in unescape(bundle["text/html"])
    assert json.loads(json.dumps(bundle[explorables.MIME_TYPE]))["layout"]["meta"]["alt"] == repr(scene)


def test_the_notebook_output_asks_only_plotlys_host(scene):
    document = unescape(scene.to_html())
    sources = re.findall(r"<script[^>]*\ssrc=[^>]*>", document)
    assert [urlsplit(re.search(r'src="([^"]+)"', source)[1]).hostname for source in sources] == ["cdn.plot.ly"]
    assert 'integrity="sha256-' in sources[0]
    assert not re.search(r"<link|\bimport\s*\(|\bfetch\(|\beval\(|new Function", document)


def test_every_slider_can_show_its_value(scene):
    for control in scene.figure.layout.meta["controls"]:
        assert control["label"].endswith(control["name"])
        if "choices" in control:
            assert control["value"] in control["choices"]
        else:
            steps = (control["value"] - control["min"]) / control["step"]
            assert control["min"] <= control["value"] <= control["max"]
            assert steps == pytest.approx(round(steps))


@pytest.mark.parametrize(
    ("gain", "bias", "message"),
    [
        ((1.0, 2.1, 0.5), (0, 0, 0), "gain go from −2 to 2"),
        ((1.0, 2.0, 0.55), (0, 0, 0), "gain .* in steps of 0.1"),
        ((1.0, float("nan"), 0.5), (0, 0, 0), "gain go from"),
        ((1.0, 2.0), (0, 0, 0), "gain must hold three numbers"),
        ((1.0, 2.0, 0.5), np.array([0.0, -1.1, 0.0]), "bias go from −1 to 1"),
        ((1.0, 2.0, 0.5), np.zeros((3, 1)), "bias must hold three numbers"),
    ],
)
def test_the_ellipsoid_says_which_numbers_its_sliders_cannot_show(gain, bias, message):
    with pytest.raises(ValueError, match=message):
        explorables.ellipsoid(gain, bias)


@pytest.mark.parametrize("x", [(1.0, 2.0), (0.7, 0.7, 0.7), (1.0, float("inf"), 2.0)])
def test_the_half_plane_says_what_it_needs(x):
    with pytest.raises(ValueError, match="three finite numbers that are not all equal"):
        explorables.half_plane(x)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not BROWSER:
        pytest.skip("no Chromium or Chrome on this machine")
    with chromium() as browser:
        yield browser


class Shown:
    """A notebook's output as a browser shows it."""

    def __init__(self, frame: Frame):
        self.frame = frame

    def set(self, **values: float):
        for name, value in values.items():
            slider = self.frame.locator(f"label:has-text('{name}') input")
            slider.evaluate(
                "(it, value) => { it.value = value; it.dispatchEvent(new Event('input', {bubbles: true})); }", value
            )
        self.settle()

    def settle(self):
        self.frame.evaluate("new Promise(done => setTimeout(() => requestAnimationFrame(() => setTimeout(done))))")

    def points(self) -> dict[str, np.ndarray]:
        traces = self.frame.evaluate(
            "document.querySelector('.js-plotly-plot').data.map(({meta, x, y, z}) => [meta, [x, y, z]])"
        )
        return {name: np.moveaxis(np.array(xyz, dtype=float), 0, -1) for name, xyz in traces}

    def readout(self) -> list[float]:
        text = self.frame.locator("output").inner_text().replace("−", "-")
        return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


def shown(browser: Browser, scene: explorables.Explorable) -> Iterator[Shown]:
    context = browser.new_context()
    page = context.new_page()
    wrong = []

    def answer(route: Route) -> None:
        if re.fullmatch(r"https://cdn\.plot\.ly/plotly-[\d.]+\.min\.js", route.request.url):
            headers = {"Access-Control-Allow-Origin": "*", "Content-Type": "text/javascript; charset=utf-8"}
            route.fulfill(body=get_plotlyjs(), headers=headers)
        else:
            wrong.append(route.request.url)
            route.abort()

    context.route("**/*", answer)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    # As JupyterLab does it, where scripts would not run in their order; Colab's way is the more lenient one.
    page.evaluate("html => { document.body.innerHTML = html; }", scene.to_html())
    frame = page.locator("iframe").element_handle().content_frame()
    frame.locator("form").wait_for()
    yield Shown(frame)
    assert not wrong
    context.close()


@pytest.fixture(scope="module")
def ellipsoid(browser) -> Iterator[Shown]:
    yield from shown(browser, explorables.ellipsoid())


@pytest.fixture(scope="module")
def half_plane(browser) -> Iterator[Shown]:
    yield from shown(browser, explorables.half_plane(X))


BASIS = np.linalg.svd(np.ones((1, 3)))[2][1:].T  # of the plane orthogonal to the uniform vector


@pytest.mark.parametrize(
    ("gain", "bias"),
    [
        ((1.2, 0.6, 0.9), (0.3, -0.4, 0.5)),
        ((1, 1, 1), (0, 0, 0)),
        ((-1.5, 0.8, 2), (-1, 0.1, 1)),
        ((-0.3, -0.3, 0.7), (0, 0.2, 0)),
        ((2, 0.1, -0.1), (0.3, -0.4, 0.5)),
        ((0, 0.6, 0.9), (0.3, -0.4, 0.5)),
        ((1.1, 0, -1.1), (0, 0, 0)),
        ((0, 0, 1.3), (0.1, 0.2, 0.3)),
        ((-0.4, 0, 0), (0, 0, 0)),
        ((0, 0, 0), (0.3, -0.4, 0.5)),
    ],
)
def test_the_ellipse_is_the_image_of_the_circle(ellipsoid, gain, bias):
    ellipsoid.set(**dict(zip(("g₁", "g₂", "g₃", "b₁", "b₂", "b₃"), (*gain, *bias), strict=True)))
    points, gain, bias = ellipsoid.points(), np.array(gain, dtype=float), np.array(bias, dtype=float)
    radius, matrix = np.sqrt(3), gain[:, None] * BASIS
    rank = np.linalg.matrix_rank(matrix)

    # Every point of the ellipse comes from the circle, and every output of LayerNorm lies in the ellipse's plane.
    origin, *_ = np.linalg.lstsq(matrix, (points["ellipse"] - bias).T)
    np.testing.assert_allclose(matrix @ origin, (points["ellipse"] - bias).T, atol=1e-12)
    assert (np.linalg.norm(origin, axis=0) <= radius + 1e-12).all()
    if rank == 2:
        np.testing.assert_allclose(np.linalg.norm(origin, axis=0), radius)
    normal = np.diff(points["normal"], axis=0)[0]
    outputs = norms.layer_norm(np.random.default_rng(0).normal(size=(50, 3)), gain, bias, eps=0.0)
    np.testing.assert_allclose((outputs - bias) @ normal, 0, atol=1e-12)
    np.testing.assert_allclose((points["plane"] - bias) @ normal, 0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(normal), 1)
    if gain.all():
        np.testing.assert_allclose(normal, (1 / gain) / np.linalg.norm(1 / gain), atol=1e-12)
    else:
        np.testing.assert_allclose(normal[gain != 0], 0)

    # The semi-axes are √3 times the singular values of G P, and lie between √3 times the sorted |g|.
    lengths = radius * np.linalg.svd(np.diag(gain) @ (np.eye(3) - 1 / 3), compute_uv=False)[:2]
    tips = [np.diff(points[name], axis=0)[0] for name in ("axis1", "axis2")[:rank]]
    np.testing.assert_allclose([np.linalg.norm(tip) for tip in tips], lengths[:rank])
    assert all(np.isnan(points[name]).all() for name in ("axis1", "axis2")[rank:])
    for tip in tips:
        assert np.linalg.norm(np.linalg.lstsq(matrix, tip)[0]) == pytest.approx(radius)
    np.testing.assert_allclose(np.inner(*tips) if rank == 2 else 0, 0, atol=1e-12)
    first, second, *bracket = ellipsoid.readout()[:2] + ellipsoid.readout()[2:]
    np.testing.assert_allclose([first, second], lengths, atol=0.0051)
    np.testing.assert_allclose(bracket, radius * np.sort(np.abs(gain))[::-1], atol=0.0051)
    assert bracket[0] >= first >= bracket[1] >= second >= bracket[2]

    # The ellipsoid is RMSNorm's, shifted by the bias.
    sphere, image = points["sphere"], points["ellipsoid"]
    np.testing.assert_allclose(norms.rms_norm(sphere, gain, eps=0.0) + bias, image, atol=1e-12)


def rotated(x: np.ndarray, degrees: float) -> np.ndarray:
    """About the uniform vector (Rodrigues' formula)."""
    axis, angle = np.ones(3) / np.sqrt(3), np.radians(degrees)
    return np.cos(angle) * x + np.sin(angle) * np.cross(axis, x) + (1 - np.cos(angle)) * (axis @ x) * axis


@pytest.mark.parametrize(
    ("scale", "shift", "degrees", "choice"),
    [(1, 0, 0, 0), (0.1, -1, 0, 1), (1.5, 1, 35, 2), (0.7, 0.2, -180, 3), (0.1, 0, 90, 4), (1.2, -0.5, -65, 1)],
)
def test_the_half_plane_shows_layer_norm(half_plane, scale, shift, degrees, choice):
    half_plane.set(α=scale, c=shift, φ=degrees, ε=choice)
    points, eps = half_plane.points(), explorables.EPSILONS[choice]
    vector, output = points["vector"][1], points["output"][1]
    np.testing.assert_allclose(vector, rotated(scale * norms.project(X) + X.mean(), degrees) + shift)
    np.testing.assert_allclose(points["projected"][1], norms.project(vector), atol=1e-12)
    np.testing.assert_allclose(output, norms.layer_norm(vector, eps=eps), atol=1e-12)
    np.testing.assert_allclose(half_plane.readout(), [*vector, *output], atol=5.1e-5)
    images = np.repeat(points["images"], len(points["others"]) // len(points["images"]), axis=0)
    np.testing.assert_allclose(images, norms.layer_norm(points["others"], eps=eps), atol=1e-12)
    # All inputs shown lie in one half-plane bounded by the line along the uniform vector.
    inputs = norms.normalize(norms.project(points["others"]))
    np.testing.assert_allclose(inputs - norms.normalize(norms.project(vector)), 0, atol=1e-9)


def test_epsilon_decides_whether_the_scale_is_forgotten(half_plane):
    def output(**values):
        half_plane.set(**values)
        return half_plane.points()["output"][1]

    start = output(α=1, c=0, φ=0, ε=0)
    for values in ({"α": 0.1}, {"α": 1.5}, {"c": -1}, {"c": 1}):
        np.testing.assert_allclose(output(**values), start, rtol=1e-14)
    inside = output(α=0.5, ε=len(explorables.EPSILONS) - 1)
    np.testing.assert_array_equal(output(c=0.3), inside)
    assert np.linalg.norm(inside) < np.linalg.norm(output(α=1.5)) < np.sqrt(3)


def test_the_readers_view_stays_when_a_slider_moves(ellipsoid):
    frame = ellipsoid.frame
    camera = "document.querySelector('.js-plotly-plot')._fullLayout.scene.camera.eye"
    before = frame.evaluate(camera)
    box = frame.locator(".js-plotly-plot").bounding_box()
    mouse = frame.page.mouse
    mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    mouse.down()
    mouse.move(box["x"] + box["width"] / 2 + 80, box["y"] + box["height"] / 2 + 40, steps=5)
    mouse.up()
    ellipsoid.settle()
    turned = frame.evaluate(camera)
    frame.evaluate("Plotly.restyle(document.querySelector('.js-plotly-plot'), {visible: 'legendonly'}, [1])")
    ellipsoid.set(**{"g₁": -0.7})
    assert turned != before
    assert frame.evaluate(camera) == turned
    assert frame.evaluate("document.querySelector('.js-plotly-plot').data[1].visible") == "legendonly"


@pytest.mark.parametrize("width", [1000, 390])
def test_the_frame_is_as_high_as_the_scene_and_its_controls(ellipsoid, width):
    page = ellipsoid.frame.page
    page.set_viewport_size({"width": width, "height": 844})
    page.wait_for_timeout(300)
    outer, form = page.locator("iframe").bounding_box(), ellipsoid.frame.locator("form").bounding_box()
    assert 0 <= outer["y"] + outer["height"] - (form["y"] + form["height"]) < 10
    assert outer["height"] <= 844
    assert ellipsoid.frame.evaluate("document.documentElement.scrollWidth") <= width


def test_sliders_answer_the_keyboard_and_reset(half_plane):
    reset = half_plane.frame.get_by_role("button", name="Reset", exact=True)
    reset.click()
    half_plane.settle()
    start = half_plane.readout()
    for name, told in (("scale α", "1.1"), ("shift c", "0.1"), ("angle φ", "5°"), ("epsilon ε", "1e−3")):
        slider = half_plane.frame.get_by_label(name)
        slider.press("ArrowRight")
        assert slider.get_attribute("aria-valuetext") == told
    half_plane.settle()
    assert half_plane.readout() != start
    np.testing.assert_allclose(start[:3], X)
    reset.click()
    half_plane.settle()
    assert half_plane.readout() == start
