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
from scipy.optimize import linprog
from scipy.spatial import ConvexHull
from scipy.special import softmax

from norm_geometry import explorables, norms
from norm_geometry.browser_figures import MIME_TYPE, Explorable

SCENES = {name: getattr(explorables, name) for name in explorables.__all__}
X = np.array([-0.5, 0.3, 2.4])


@pytest.fixture(params=SCENES)
def scene(request) -> Explorable:
    return SCENES[request.param]()


def test_a_notebook_and_the_book_each_find_their_form(scene):
    bundle, _ = DisplayFormatter().format(scene)
    assert len(bundle["text/plain"]) > 40
    assert bundle["text/plain"] == scene.figure.layout.meta["alt"]
    assert f'title="{scene!r}"' in unescape(bundle["text/html"])
    assert json.loads(json.dumps(bundle[MIME_TYPE]))["layout"]["meta"]["alt"] == repr(scene)


def test_the_notebook_output_asks_only_plotlys_host(scene):
    document = unescape(scene.to_html())
    sources = re.findall(r"<script[^>]*\ssrc=[^>]*>", document)
    assert [urlsplit(re.search(r'src="([^"]+)"', source)[1]).hostname for source in sources] == ["cdn.plot.ly"]
    assert 'integrity="sha256-' in sources[0]
    assert not re.search(r"<link|\bimport\s*\(|\bfetch\(|\beval\(|new Function", document)


def test_every_slider_can_show_its_value(scene):
    for control in scene.figure.layout.meta["controls"]:
        assert control["label"].endswith(control["name"])
        if "options" in control:
            assert 0 <= control["value"] < len(control["options"])
        elif "choices" in control:
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


@pytest.mark.parametrize(
    ("scene", "keys", "message"),
    [
        ("attention", [[1.0, 2.0, 3.0]], "draws 2 to 8 keys, got 1"),
        ("attention", [[1.0, 2.0], [0.0, 1.0]], "each key must be 3 numbers"),
        ("attention", [[1.0, 2.0, 3.0], [0.0, 1.0, float("nan")]], "each key must be 3 numbers from −5 to 5"),
        ("attention", [[1.0, 2.0, 3.0], [0.5, 0.5, 0.5]], "projects to 0"),
        ("hull", [[0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 1, 1]], "each key must be 2 numbers"),
        ("hull", [[0, 1], [1, 0], [1, 1]], "draws 4 to 9 keys, got 3"),
        ("hull", [[0, 1], [1, 0], [-1, 0], [2.6, 1]], "2 numbers from −2.5 to 2.5"),
        ("hull", [[0, 1], [1, 0], [-1, 0], [0.51, 1]], "coordinate go from −2.5 to 2.5 in steps of 0.05"),
        ("hull", [[0, 1], [1, 0], [0, 0], [0.5, 1]], "length 0 cannot be normalized"),
        ("hull", [[0, 1], [1, 1], [2, 1], [0.5, 0.5]], "flat hull"),
        ("hull", [[0, 1], [0, 2], [2, 1], [0.5, 0.5]], "normalized, have a flat hull"),
        ("hull_3d", np.eye(3)[[0, 1, 2, 0, 1]], "flat hull"),
    ],
)
def test_keys_that_make_no_picture_are_refused_in_one_line(scene, keys, message):
    with pytest.raises(ValueError, match=message) as error:
        SCENES[scene](keys)
    assert "\n" not in str(error.value)


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

    def choose(self, option: str):
        self.frame.get_by_label(option, exact=True).check()
        self.settle()

    def settle(self):
        self.frame.evaluate("new Promise(done => setTimeout(() => requestAnimationFrame(() => setTimeout(done))))")

    def points(self) -> dict[str, np.ndarray]:
        traces = self.frame.evaluate(
            """document.querySelector('.js-plotly-plot').data.map(
            ({meta, x, y, z}) => [meta, [x, y, z].filter(axis => axis)])"""
        )
        return {name: np.moveaxis(np.array(xyz, dtype=float), 0, -1) for name, xyz in traces}

    def attribute(self, trace: str, path: str):
        find = "document.querySelector('.js-plotly-plot').data.find(({meta}) => meta === name)"
        return self.frame.evaluate(f"name => {find}.{path}", trace)

    def text(self) -> str:
        return self.frame.locator("output").inner_text().replace("−", "-")

    def readout(self) -> list[float]:
        text = self.text()
        return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


def shown(browser: Browser, scene: Explorable) -> Iterator[Shown]:
    context = browser.new_context(viewport={"width": 700, "height": 800})
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


@pytest.fixture(scope="module")
def attention(browser) -> Iterator[Shown]:
    yield from shown(browser, explorables.attention())


@pytest.fixture(scope="module")
def hull(browser) -> Iterator[Shown]:
    yield from shown(browser, explorables.hull())


@pytest.fixture(scope="module")
def hull_3d(browser) -> Iterator[Shown]:
    yield from shown(browser, explorables.hull_3d())


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
@pytest.mark.parametrize("name", ["ellipsoid", "attention", "hull"])
def test_the_frame_is_as_high_as_the_scene_and_its_controls(request, name, width):
    shown = request.getfixturevalue(name)
    page = shown.frame.page
    page.set_viewport_size({"width": width, "height": 844})
    page.wait_for_timeout(300)
    outer, form = page.locator("iframe").bounding_box(), shown.frame.locator("form").bounding_box()
    assert 0 <= outer["y"] + outer["height"] - (form["y"] + form["height"]) < 10
    assert outer["height"] <= 844
    assert shown.frame.evaluate("document.documentElement.scrollWidth") <= width


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


STAGES = {
    "as they are": lambda keys: keys,
    "projected": norms.project,
    "on the circle": lambda keys: norms.normalize(norms.project(keys)),
}


@pytest.mark.parametrize(("option", "name"), [*zip(STAGES, ("keys0", "keys1", "keys2"), strict=True)])
@pytest.mark.parametrize(
    ("to", "around", "size"), [(40, 60, 2), (0, 0, 3), (180, -35, 1.2), (90, 145, 3), (15, 180, 0)]
)
def test_attention_weights_are_the_softmax_of_the_scores(attention, option, name, to, around, size):
    attention.set(**{"θ": to, "φ": around, "‖q‖": size})
    attention.choose(option)
    points, keys = attention.points(), STAGES[option](np.array(explorables.ATTENTION_KEYS))
    query = points["query"][1] if size else np.zeros(3)
    np.testing.assert_allclose(np.linalg.norm(query), size, atol=1e-12)
    np.testing.assert_allclose(query.sum(), np.sqrt(3) * size * np.cos(np.radians(to)), atol=1e-12)
    np.testing.assert_allclose(points[name][1::3], keys, atol=1e-12)
    assert [key for key in ("keys0", "keys1", "keys2") if points[key].size] == [name]

    weights = softmax(keys @ query / np.sqrt(3))
    np.testing.assert_allclose(points[name.replace("keys", "bars")][1::3, 0], weights)
    np.testing.assert_allclose(points["equal"][:, 0], 1 / len(keys))
    assert attention.attribute("percent", "text") == [f"\u00a0{100 * weight:.1f} %" for weight in weights]
    sizes = np.array(attention.attribute(name, "marker.size"))[1::3]
    assert (np.diff(sizes[np.argsort(weights)]) >= -1e-9).all()
    np.testing.assert_allclose(attention.readout()[: len(keys)], weights, atol=5.1e-4)
    assert ("every weight is 1/6" in attention.text()) == bool(np.ptp(weights) < 1e-9)


def test_a_query_along_the_uniform_vector_attends_equally_only_to_projected_keys(attention):
    attention.set(**{"θ": 0, "φ": 0, "‖q‖": 3})
    equal = []
    for option in STAGES:
        attention.choose(option)
        equal.append("all equal" in attention.text())
    assert equal == [False, True, True]


def strictly_separable(keys: np.ndarray, index: int) -> bool:
    """Does a query score this key higher than every other? A linear programme for the largest margin in a box."""
    others = np.delete(keys, index, axis=0)
    margin = np.hstack([others - keys[index], np.ones((len(others), 1))])
    bounds = [(-1, 1)] * keys.shape[1] + [(None, None)]
    result = linprog([0] * keys.shape[1] + [-1], margin, np.zeros(len(others)), bounds=bounds)
    return -result.fun > 1e-9


def check_hull(shown: Shown, name: str, given: np.ndarray, normalized: bool) -> None:
    """The picture and the readout against linear programmes, Qhull and two hundred thousand queries."""
    shown.set(**dict(zip(("x₁", "x₂", "x₃"), given[-1], strict=False)))
    shown.frame.get_by_role("radio").nth(int(normalized)).check()
    shown.settle()
    points, dimensions = shown.points(), given.shape[1]
    keys = np.sqrt(3) * given / np.linalg.norm(given, axis=1, keepdims=True) if normalized else given
    trace = f"keys{int(normalized)}"
    np.testing.assert_allclose(points[trace], keys, atol=1e-12)

    selectable = [strictly_separable(keys, i) for i in range(len(keys))]
    symbols = ["circle" if it else "circle-open" for it in selectable]
    names = [*(f"k{index}" for index in "₁₂₃₄₅"), "k"]
    assert shown.attribute(trace, "marker.symbol") == symbols
    assert shown.attribute("names", "text") == [name for name, it in zip(names, selectable, strict=True) if it]
    vertices = keys[ConvexHull(keys).vertices]
    drawn = points["hull"] if dimensions == 2 else points["edges"]
    drawn = drawn[~np.isnan(drawn[:, 0])]
    np.testing.assert_allclose(np.unique(drawn.round(9), axis=0), np.unique(vertices.round(9), axis=0), atol=1e-8)

    queries = norms.normalize(np.random.default_rng(0).normal(size=(200_000, dimensions)))
    share = np.mean((queries @ keys.T).argmax(axis=1) == len(keys) - 1)
    region = points["region"].reshape(-1, dimensions) if points["region"].size else np.empty((0, dimensions))
    region = region[~np.isnan(region[:, 0])]
    if selectable[-1]:
        assert shown.text().startswith("selectable")
        told = float(re.search(r"[\d.]+(?= %)", shown.text())[0])
        assert told == pytest.approx(100 * share, abs=0.5)
        # In the region, its border included, no key scores higher; just outside the border another one does.
        scores = region @ keys.T
        assert (scores[:, -1] >= scores.max(axis=1) - 1e-9).all()
        border = region if dimensions == 2 else points["border"]
        beyond = border + 0.01 * (border - border.mean(axis=0))
        corners = [0, 60] if dimensions == 2 else slice(None)
        assert ((beyond @ keys.T).argmax(axis=1) != len(keys) - 1)[corners].all()
    else:
        assert share == 0
        assert not region.size
        assert shown.text().startswith("unselectable: no query scores k highest")
        terms = re.findall(r"([\d.]+) k([₁₂₃₄₅])", shown.text())
        weights = np.array([float(weight) for weight, _ in terms])
        corners = keys[["₁₂₃₄₅".index(index) for _, index in terms]]
        np.testing.assert_allclose(weights.sum(), 1, atol=0.021)
        np.testing.assert_allclose(weights @ corners, keys[-1], atol=0.05)
        spokes = points["spokes"].reshape(-1, 3, dimensions)
        np.testing.assert_allclose(spokes[:, 1], corners, atol=1e-12)


PLACES = [
    (1.9, 1.6),
    (0.5, 0.3),
    (2.5, 2.5),
    (-2.5, 0),
    (1.2, 1.1),
    (1.25, 1.15),
    (1.9, 0.4),
    (0.7, -0.05),
    (-1.5, -0.1),
]
PLACES_3D = [(1.5, 1.5, 1.2), (0.2, 0.2, 0.2), (2.5, -2.5, 2.5), (-1, -0.5, 0.4), (2.0, -0.6, -0.8), (0.05, 0.1, -2.5)]


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_a_key_in_the_plane_is_selectable_where_it_is_a_vertex(hull, place, normalized):
    check_hull(hull, "hull", np.array([*explorables.HULL_KEYS[:-1], place]), normalized)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("place", PLACES_3D)
def test_a_key_in_space_is_selectable_where_it_is_a_vertex(hull_3d, place, normalized):
    check_hull(hull_3d, "hull_3d", np.array([*explorables.HULL_3D_KEYS[:-1], place]), normalized)


def test_a_key_of_length_zero_is_not_normalized(hull):
    hull.set(**{"x₁": 0, "x₂": 0})
    hull.choose("on the circle")
    np.testing.assert_array_equal(hull.points()["keys1"][-1], [0, 0])
    assert hull.text().startswith("unselectable")


@pytest.mark.parametrize("pointer", ["mouse", "finger"])
def test_a_pointer_drags_the_key(hull, pointer):
    hull.frame.get_by_role("button", name="Reset", exact=True).click()
    hull.settle()
    assert hull.text().startswith("selectable")
    page = hull.frame.page
    box = hull.frame.locator(".js-plotly-plot > div").last.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    if pointer == "mouse":
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 100, y + 60, steps=5)
        page.mouse.up()
        page.mouse.move(x, y)
    else:
        touch = page.context.new_cdp_session(page)
        for kind, points in (("Start", [(x, y)]), ("Move", [(x - 50, y)]), ("Move", [(x - 100, y + 60)]), ("End", [])):
            touches = [{"x": x, "y": y} for x, y in points]
            touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": touches})
    hull.settle()
    sliders = [float(slider.input_value()) for slider in hull.frame.get_by_role("slider").all()]
    per_unit = hull.frame.evaluate("document.querySelector('.js-plotly-plot')._fullLayout.xaxis._m")
    start = np.array(explorables.HULL_KEYS[-1])
    np.testing.assert_allclose(sliders, start + np.array([-100, -60]) / per_unit, atol=0.05)
    np.testing.assert_allclose(hull.points()["keys0"][-1], sliders)
    assert hull.text().startswith("unselectable")
    moved = hull.frame.locator(".js-plotly-plot > div").last.bounding_box()
    np.testing.assert_allclose([moved["x"] - box["x"], moved["y"] - box["y"]], [-100, 60], atol=0.05 * per_unit)


@pytest.mark.parametrize("name", ["attention", "hull", "hull_3d"])
def test_the_keyboard_changes_the_picture(request, name):
    shown = request.getfixturevalue(name)
    plot = shown.frame.locator(".js-plotly-plot")
    reset = shown.frame.get_by_role("button", name="Reset", exact=True)
    reset.click()
    shown.settle()
    start = shown.points()
    radios = shown.frame.get_by_role("radiogroup", name="keys").get_by_role("radio")
    for control in (*shown.frame.get_by_role("slider").all(), radios.first):
        before = plot.screenshot()
        control.press("ArrowRight")
        shown.settle()
        shown.frame.page.wait_for_timeout(200)
        assert plot.screenshot() != before
    assert radios.nth(1).is_checked()
    reset.click()
    shown.settle()
    for trace, points in shown.points().items():
        np.testing.assert_array_equal(points, start[trace])
    assert radios.first.is_checked()
