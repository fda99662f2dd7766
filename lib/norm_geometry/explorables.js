// Computes the scenes of explorables.py in the reader's browser: the sliders' values in, coordinates and a line of
// text out. How the traces look is said in Python. Plain script: a page loads it, a notebook's output contains it.
const explore = (() => {
  const ORIGIN = [0, 0, 0], ONE = [1, 1, 1];

  const scaled = (s, v) => v.map((x) => s * x);
  const times = (u, v) => u.map((x, i) => x * v[i]);
  const plus = (...vectors) => vectors.reduce((u, v) => u.map((x, i) => x + v[i]));
  const dot = (u, v) => times(u, v).reduce((sum, x) => sum + x);
  const length = (v) => Math.hypot(...v);
  const unit = (v) => scaled(1 / length(v), v);
  const cross = ([a, b, c], [d, e, f]) => [b * f - c * e, c * d - a * f, a * e - b * d];
  const range = (n) => [...Array(n).keys()];

  // An orthonormal basis: two vectors in the plane orthogonal to 1, and one along 1.
  const PLANE = [unit([1, -1, 0]), unit([1, 1, -2])];
  const UP = unit(ONE);

  // A point of the sphere of radius √3, whose equator is LayerNorm's circle.
  const onSphere = (longitude, latitude = 0) => scaled(Math.sqrt(3), plus(
    scaled(Math.cos(latitude) * Math.cos(longitude), PLANE[0]),
    scaled(Math.cos(latitude) * Math.sin(longitude), PLANE[1]),
    scaled(Math.sin(latitude), UP)));
  const turn = (steps) => range(steps + 1).map((i) => 2 * Math.PI * i / steps);
  const CIRCLE = turn(96).map((angle) => onSphere(angle));
  const LATITUDES = range(13).map((i) => (i / 12 - 0.5) * Math.PI);
  const SPHERE = LATITUDES.map((latitude) => turn(36).map((longitude) => onSphere(longitude, latitude)));
  const NET = [  // null ends a line
    ...SPHERE.filter((_, i) => i % 2 === 0),
    ...range(6).map((i) => turn(48).map((angle) => onSphere(i * Math.PI / 6, angle))),
  ].flatMap((line) => [...line, null]);
  const AXES = range(3).flatMap((i) => [-2, 2.6].map((s) => ONE.map((_, j) => (i === j ? s : 0))).concat([null]));

  const coordinates = (points) =>
    Object.fromEntries(["x", "y", "z"].map((axis, i) => [axis, points.map((point) => point && point[i])]));
  const surface = (rows) =>
    Object.fromEntries(["x", "y", "z"].map((axis, i) => [axis, rows.map((row) => row.map((point) => point[i]))]));
  // An arrow of no length is not drawn, and neither is its label.
  const arrow = (from, along) => coordinates(length(along) > 1e-9 ? [from, plus(from, along)] : [null, null]);
  const patch = (centre, u, v) => coordinates(
    [[1, 1], [1, -1], [-1, -1], [-1, 1]].map(([s, t]) => plus(centre, scaled(s, u), scaled(t, v))));

  const fixed = (x, digits) => x.toFixed(digits).replace(/^-(0\.?0*)$/, "$1").replace("-", "−");
  const tuple = (v, digits) => `(${v.map((x) => fixed(x, digits)).join(", ")})`;

  const scenes = {
    ellipsoid(values) {
      const gain = values.slice(0, 3), bias = values.slice(3);
      const image = (point) => point && plus(times(gain, point), bias);
      // The singular vectors of G P are the eigenvectors of the 2×2 matrix BᵀG²B, B the basis of the plane.
      const [p, q] = PLANE.map((v) => times(gain, v));
      const angle = Math.atan2(2 * dot(p, q), dot(p, p) - dot(q, q)) / 2;
      const axes = [[Math.cos(angle), Math.sin(angle)], [-Math.sin(angle), Math.cos(angle)]]
        .map(([s, t]) => scaled(Math.sqrt(3), plus(scaled(s, p), scaled(t, q))));
      const semiaxes = axes.map(length);
      // The direction of G⁻¹1 and, where gains are zero, its limit as they go to zero together.
      const normal = unit(gain.map((g) => (gain.includes(0) ? Number(g === 0) : 1 / g)));
      const first = semiaxes[0] > 0 ? unit(axes[0]) : PLANE[0];
      const sides = [first, cross(normal, first)].map((side, i) => scaled(semiaxes[i] + 0.5, side));
      const bracket = gain.map((g) => Math.sqrt(3) * Math.abs(g)).sort((g, h) => h - g).map((g) => fixed(g, 2));
      const [a1, a2] = semiaxes.map((a) => fixed(a, 2));
      return {
        traces: {
          axes: coordinates(AXES),
          sphere: surface(SPHERE),
          circle: coordinates(CIRCLE),
          uniform: arrow(ORIGIN, ONE),
          ellipsoid: surface(SPHERE.map((row) => row.map(image))),
          net: coordinates(NET.map(image)),
          plane: patch(bias, ...sides),
          ellipse: coordinates(CIRCLE.map(image)),
          axis1: arrow(bias, axes[0]),
          axis2: arrow(bias, axes[1]),
          bias: arrow(ORIGIN, bias),
          normal: arrow(bias, normal),
        },
        readout: `semi-axes a₁ = ${a1}, a₂ = ${a2}\n` +
          `√3·|g|: ${bracket[0]} ≥ a₁ ≥ ${bracket[1]} ≥ a₂ ≥ ${bracket[2]}`,
      };
    },

    half_plane([scale, shift, degrees, eps], { point, controls }) {
      const mean = dot(point, ONE) / 3;
      const projected = plus(point, scaled(-mean, ONE));
      const angle = degrees * Math.PI / 180;
      const ahead = unit(projected), aside = cross(UP, ahead);
      const out = plus(scaled(Math.cos(angle), ahead), scaled(Math.sin(angle), aside));
      const normalized = (r) => scaled(r / Math.sqrt(r * r / 3 + eps), out);  // LayerNorm of r·out + any multiple of 1
      const distance = scale * length(projected);
      const vector = plus(scaled(distance, out), scaled(mean + shift, ONE));
      const result = normalized(distance);
      const reach = 1.05 * controls[0].max * length(projected);
      const height = 1.05 * (Math.abs(mean) + controls[1].max);
      const distances = range(6).map((i) => reach * (i + 0.5) / 6);
      const heights = range(7).map((i) => height * (i - 3) / 3.5);
      return {
        traces: {
          axes: coordinates(AXES),
          circle: coordinates(CIRCLE),
          plane: patch(ORIGIN, ...PLANE.map((v) => scaled(2.4, v))),
          half_plane: patch(scaled(reach / 2, out), scaled(reach / 2, out), scaled(height, ONE)),
          line: coordinates([scaled(-height, ONE), scaled(height, ONE)]),
          others: coordinates(distances.flatMap((r) => heights.map((h) => plus(scaled(r, out), scaled(h, ONE))))),
          images: coordinates(distances.map(normalized)),
          uniform: arrow(ORIGIN, ONE),
          vector: arrow(ORIGIN, vector),
          drop: coordinates([vector, scaled(distance, out)]),
          projected: arrow(ORIGIN, scaled(distance, out)),
          output: arrow(ORIGIN, result),
        },
        readout: `x′ = ${tuple(vector, 4)}\nLN(x′) = ${tuple(result, 4)}`,
      };
    },
  };

  function slider({ name, label, min, max, step, choices, value, unit: symbol = "" }) {
    const row = document.createElement("label");
    const input = document.createElement("input");
    const shown = document.createElement("span");
    input.type = "range";
    Object.assign(input, choices ? { min: 0, max: choices.length - 1, step: 1 } : { min, max, step });
    input.defaultValue = choices ? choices.indexOf(value) : value;  // what Reset goes back to
    input.setAttribute("aria-label", label);
    row.style.cssText = "display: flex; align-items: center; gap: 0.5rem; max-width: none; min-height: 1.75rem";
    input.style.cssText = "flex: 1; min-width: 0; margin: 0";
    shown.style.cssText = "flex: 0 0 2.9em; text-align: right; font-variant-numeric: tabular-nums";
    row.append(name, input, shown);
    const read = () => (choices ? choices[input.value] : Number(input.value));
    const digits = String(step).split(".")[1]?.length ?? 0;
    const text = (x) => (!choices ? fixed(x, digits) : x > 0 && x < 0.01 ? x.toExponential() : String(x));
    const tell = () => {
      shown.textContent = text(read()).replace("-", "−") + symbol;
      input.setAttribute("aria-valuetext", shown.textContent);
    };
    return { row, read, tell };
  }

  // Draws the scene that a figure names into it, and returns the controls for the caller to place.
  return (plot) => {
    const { meta } = plot.layout;
    const sliders = meta.controls.map(slider);
    const form = document.createElement("form");
    const readout = document.createElement("output");
    const reset = document.createElement("button");
    const half = Math.ceil(sliders.length / 2);
    form.style.cssText = `flex: 1; display: grid; grid: auto-flow / minmax(0, 1fr) minmax(0, 1fr); gap: 0 1.5rem;
      grid-template-rows: repeat(${half}, auto); max-width: 44rem; margin: auto`;
    readout.style.cssText = "grid-column: 1 / -1; white-space: pre-line; text-align: center; min-height: 3.4em";
    sliders.forEach(({ row }, i) => { row.style.gridArea = `${i % half + 1} / ${Math.floor(i / half) + 1}`; });
    Object.assign(reset, { type: "reset", textContent: "Reset" });
    reset.style.cssText = "grid-column: 1 / -1; justify-self: center";
    form.append(...sliders.map(({ row }) => row), readout, reset);

    const draw = () => {
      const scene = scenes[meta.scene](sliders.map(({ read }) => read()), meta);
      readout.value = scene.readout;
      const data = plot.data.map((trace) => ({ ...trace, ...scene.traces[trace.meta] }));
      return Plotly.react(plot, data, plot.layout);  // the layout holds the reader's point of view
    };
    let waiting;
    const update = () => {
      sliders.forEach(({ tell }) => tell());
      waiting ??= requestAnimationFrame(() => { waiting = undefined; draw(); });
    };
    form.addEventListener("input", update);
    form.addEventListener("reset", () => setTimeout(update));  // the values change after the event
    form.addEventListener("submit", (event) => event.preventDefault());
    sliders.forEach(({ tell }) => tell());
    draw();
    return form;
  };
})();
