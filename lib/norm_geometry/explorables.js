// Computes the scenes of explorables.py in the reader's browser: the sliders' values in, coordinates and a line of
// text out. How the traces look is said in Python. Plain script: a page loads it, a notebook's output contains it.
const explore = (() => {
  const ORIGIN = [0, 0, 0], ONE = [1, 1, 1];

  const scaled = (s, v) => v.map((x) => s * x);
  const times = (u, v) => u.map((x, i) => x * v[i]);
  const plus = (...vectors) => vectors.reduce((u, v) => u.map((x, i) => x + v[i]));
  const minus = (u, v) => plus(u, scaled(-1, v));
  const dot = (u, v) => times(u, v).reduce((sum, x) => sum + x);
  const length = (v) => Math.hypot(...v);
  const unit = (v) => scaled(1 / length(v), v);
  const cross = ([a, b, c], [d, e, f]) => [b * f - c * e, c * d - a * f, a * e - b * d];
  const range = (n) => [...Array(n).keys()];
  const choose = (items, n) => (n === 0 ? [[]]
    : items.flatMap((item, i) => choose(items.slice(i + 1), n - 1).map((rest) => [item, ...rest])));
  const determinant = (rows) => (rows.length === 0 ? 1 : rows[0].reduce((sum, x, i) =>
    sum + (-1) ** i * x * determinant(rows.slice(1).map((row) => row.filter((_, j) => j !== i))), 0));

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
  const coordinates = (points, axes = ["x", "y", "z"]) =>
    Object.fromEntries(axes.map((axis, i) => [axis, points.map((point) => point && point[i])]));
  const flat = (points) => coordinates(points, ["x", "y"]);
  const lines = (list) => list.flatMap((line) => [...line, null]);  // null ends a line
  const surface = (rows) =>
    Object.fromEntries(["x", "y", "z"].map((axis, i) => [axis, rows.map((row) => row.map((point) => point[i]))]));
  // An arrow of no length is not drawn, and neither is its label.
  const arrow = (from, along) => coordinates(length(along) > 1e-9 ? [from, plus(from, along)] : [null, null]);
  const NET = lines([
    ...SPHERE.filter((_, i) => i % 2 === 0),
    ...range(6).map((i) => turn(48).map((angle) => onSphere(i * Math.PI / 6, angle))),
  ]);
  const AXES = lines(range(3).map((i) => [-2, 2.6].map((s) => ONE.map((_, j) => (i === j ? s : 0)))));
  const patch = (centre, u, v) => coordinates(
    [[1, 1], [1, -1], [-1, -1], [-1, 1]].map(([s, t]) => plus(centre, scaled(s, u), scaled(t, v))));

  const fixed = (x, digits) => x.toFixed(digits).replace(/^-(0\.?0*)$/, "$1").replace("-", "−");
  const rounded = (x) => String(Number(x.toPrecision(3)));
  const tuple = (v, digits) => `(${v.map((x) => fixed(x, digits)).join(", ")})`;

  const projected = (v) => plus(v, scaled(-dot(v, ONE) / 3, ONE));
  const normalized = (v) => (length(v) > 0 ? scaled(Math.sqrt(3), unit(v)) : v);

  function softmax(scores) {
    const powers = scores.map((score) => Math.exp(score - Math.max(...scores)));
    return scaled(1 / powers.reduce((sum, power) => sum + power), powers);
  }

  // A key that no query selects is a convex combination of others: pairs of the number of a key and its weight.
  function combination(keys, i) {
    const others = range(keys.length).filter((j) => j !== i);
    const volume = (corners) => determinant(corners.map((j) => [...keys[j], 1]));
    for (const corners of choose(others, keys[i].length + 1)) {
      const whole = volume(corners);
      const weights = corners.map((_, c) => volume(corners.with(c, i)) / whole);
      if (Math.abs(whole) > 1e-9 && weights.every((weight) => weight > -1e-9)) {
        return corners.map((j, c) => [j, weights[c]]).filter(([, weight]) => weight > 1e-9);
      }
    }
    return undefined;
  }

  // In the plane: the first and the last angle of the queries that select a key. A query selects it when it is
  // within 90° of every difference between this key and another.
  function arc(keys, i) {
    const angles = keys.filter((_, j) => j !== i).map((key) => minus(keys[i], key)).map(([x, y]) => Math.atan2(y, x));
    const apart = angles.map((angle) => Math.atan2(Math.sin(angle - angles[0]), Math.cos(angle - angles[0])));
    return [angles[0] + Math.max(...apart) - Math.PI / 2, angles[0] + Math.min(...apart) + Math.PI / 2];
  }

  // In the plane: the corners of the convex hull, in their order.
  function corners(keys) {
    const distinct = keys.filter((key, i) => keys.slice(0, i).every((other) => length(minus(key, other)) > 1e-9));
    const ends = distinct.filter((_, i) => !combination(distinct, i));
    const centre = scaled(1 / ends.length, plus(...ends));
    const angle = (key) => Math.atan2(...minus(key, centre));
    return ends.toSorted((key, other) => angle(key) - angle(other));
  }

  // Counter-clockwise along the outer edge of a ring and back along its inner edge.
  function sector([from, to], inner, outer) {
    const angles = range(61).map((i) => from + (to - from) * i / 60);
    const at = (r) => (angle) => [r * Math.cos(angle), r * Math.sin(angle)];
    return [...angles.map(at(outer)), ...angles.toReversed().map(at(inner)), at(outer)(from)];
  }

  // In space: the triangles between three keys that have all keys on one side, and the unit normals that point away.
  function facets(keys) {
    return choose(range(keys.length), 3).flatMap((corners) => {
      const [a, b, c] = corners.map((i) => keys[i]);
      const along = cross(minus(b, a), minus(c, a));
      if (length(along) < 1e-9) return [];
      const heights = keys.map((key) => dot(unit(along), minus(key, a)));
      if (heights.every((height) => height < 1e-9)) return [{ corners, normal: unit(along) }];
      if (heights.every((height) => height > -1e-9)) return [{ corners, normal: unit(scaled(-1, along)) }];
      return [];
    });
  }

  const greatArc = (u, v) => range(25).map((i) => unit(plus(scaled(1 - i / 24, u), scaled(i / 24, v))));
  const solidAngle = (u, v, w) =>
    2 * Math.atan2(Math.abs(dot(u, cross(v, w))), 1 + dot(u, v) + dot(v, w) + dot(w, u));

  // In space: the queries that select a key, a spherical polygon around `centre` with a facet's normal in each corner.
  function polygon(hull, i) {
    const normals = hull.filter(({ corners }) => corners.includes(i)).map(({ normal }) => normal);
    const centre = unit(plus(...normals));
    const right = unit(cross(centre, normals[0]));
    const ahead = cross(right, centre);
    const angle = (normal) => Math.atan2(dot(normal, right), dot(normal, ahead));
    const round = normals.toSorted((u, v) => angle(u) - angle(v));
    const sides = round.map((normal, j) => [normal, round[(j + 1) % round.length]]);
    return {
      centre,
      boundary: sides.flatMap(([u, v]) => greatArc(u, v)),
      share: sides.reduce((sum, [u, v]) => sum + solidAngle(centre, u, v), 0) / (4 * Math.PI),
    };
  }

  // What the two scenes of hulls have in common. The last key is the reader's.
  function keysAndHull(values, { keys }) {
    const dimensions = keys[0].length;
    const last = keys.length - 1;
    const given = [...keys.slice(0, -1), values.slice(0, dimensions)];
    const shown = values[dimensions] ? given.map(normalized) : given;
    const combinations = shown.map((_, i) => combination(shown, i));
    const name = (i) => (i === last ? "k" : `k${"₁₂₃₄₅₆₇₈"[i]}`);
    const weights = combinations[last]?.map(([j, weight]) => `${fixed(weight, 2)} ${name(j)}`);
    return {
      last, name, shown, chosen: values[dimensions],
      paths: values[dimensions] ? lines(given.map((key, i) => [key, shown[i]])) : [],
      spokes: lines((combinations[last] ?? []).map(([j]) => [shown[last], shown[j]])),
      selectable: range(keys.length).filter((i) => !combinations[i]),
      symbols: { marker: { symbol: combinations.map((it) => (it ? "circle-open" : "circle")) } },
      readout: (share) => (weights
        ? `unselectable: no query scores k highest\nk = ${weights.join(" + ")}`
        : `selectable: by ${rounded(100 * share)} % of all query directions\n`),
    };
  }

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

    attention([degreesTo, degreesAround, size, chosen], { keys }) {
      const [to, around] = [degreesTo, degreesAround].map((degrees) => degrees * Math.PI / 180);
      const query = scaled(size, plus(
        scaled(Math.cos(to), UP),
        scaled(Math.sin(to) * Math.cos(around), PLANE[0]),
        scaled(Math.sin(to) * Math.sin(around), PLANE[1])));
      const stages = [keys, keys.map(projected), keys.map(projected).map(normalized)].slice(0, chosen + 1);
      const shown = stages[chosen];
      const weights = softmax(shown.map((key) => dot(query, key) / Math.sqrt(3)));
      const ratio = Math.max(...weights) / Math.min(...weights);
      const bars = weights.map((weight, i) => [[0, keys.length - i], [weight, keys.length - i]]);
      const sizes = weights.flatMap((weight) => [0, 4 + 32 * Math.sqrt(weight), 0]);
      const inColour = (i, points) => (i === chosen ? points : []);  // a trace for each stage, of which one is shown
      return {
        traces: {
          axes: coordinates(AXES),
          plane: patch(ORIGIN, ...PLANE.map((v) => scaled(2.4, v))),
          circle: coordinates(chosen === 2 ? CIRCLE : []),
          uniform: arrow(ORIGIN, ONE),
          paths: coordinates(chosen ? lines(keys.map((_, j) => stages.map((stage) => stage[j]))) : []),
          ...Object.fromEntries(range(3).flatMap((i) => [
            [`keys${i}`, {
              ...coordinates(inColour(i, lines(shown.map((key) => [ORIGIN, key])))), marker: { size: sizes },
            }],
            [`bars${i}`, flat(inColour(i, lines(bars)))],
          ])),
          labels: coordinates(shown.map((key) => scaled(1 + 0.35 / length(key), key))),
          query: arrow(ORIGIN, query),
          equal: flat([[1 / keys.length, 0.3], [1 / keys.length, keys.length + 0.7]]),
          names: flat(bars.map(([start]) => start)),
          percent: {
            ...flat(bars.map(([, end]) => end)), text: weights.map((weight) => `\u00a0${fixed(100 * weight, 1)} %`),
          },
        },
        readout: `weights ${weights.map((weight) => fixed(weight, 3)).join(", ")}\n` + (ratio - 1 < 1e-9
          ? `all equal: every weight is 1/${keys.length}`
          : `the largest is ${rounded(ratio)} times the smallest`),
      };
    },

    hull(values, meta) {
      const { last, name, shown, chosen, paths, spokes, selectable, symbols, readout } = keysAndHull(values, meta);
      const arcs = shown.map((_, i) => arc(shown, i));
      const own = selectable.includes(last) ? [arcs[last]] : [];
      const ofOthers = selectable.filter((i) => i !== last).map((i) => arcs[i]);
      const ends = corners(shown);
      const [inner, outer] = [2.9, 3.3];
      return {
        traces: {
          wedge: flat(lines(own.map((it) => sector(it, 0, inner)))),
          region: flat(own.length ? sector(own[0], inner, outer) : [null]),  // its name stays in the legend
          regions: flat(lines(ofOthers.map((it) => sector(it, inner, outer)))),
          names: { ...flat(selectable.map((i) => sector(arcs[i], 3.5, 3.5)[30])), text: selectable.map(name) },
          circle: flat(chosen ? turn(96).map((angle) => scaled(Math.sqrt(3), [Math.cos(angle), Math.sin(angle)])) : []),
          hull: flat([...ends, ends[0]]),
          spokes: flat(spokes),
          paths: flat(paths),
          keys0: { ...flat(chosen ? [] : shown), ...symbols },
          keys1: { ...flat(chosen ? shown : []), ...symbols },
        },
        readout: readout((arcs[last][1] - arcs[last][0]) / (2 * Math.PI)),
      };
    },

    hull_3d(values, meta) {
      const { last, name, shown, chosen, paths, spokes, selectable, symbols, readout } = keysAndHull(values, meta);
      const hull = facets(shown);
      const regions = new Map(selectable.map((i) => [i, polygon(hull, i)]));
      const own = regions.get(last);
      const edges = choose(hull, 2).filter(([f, g]) => f.corners.filter((i) => g.corners.includes(i)).length === 2);
      const outside = (v) => v && scaled(3, v);
      const ijk = Object.fromEntries(["i", "j", "k"].map((name, c) => [name, hull.map(({ corners }) => corners[c])]));
      return {
        traces: {
          axes: coordinates(AXES),
          sphere: surface(SPHERE.map((row) => row.map((point) => outside(unit(point))))),
          borders: coordinates(lines(edges.map(([f, g]) => greatArc(f.normal, g.normal))).map(outside)),
          region: surface(own ? range(9).map((i) => own.boundary.map((v) =>
            outside(unit(plus(scaled(1 - i / 8, own.centre), scaled(i / 8, v)))))) : []),
          border: coordinates(own ? own.boundary.map(outside) : []),
          names: {
            ...coordinates([...regions.values()].map(({ centre }) => outside(centre))), text: selectable.map(name),
          },
          hull: { ...coordinates(shown), ...ijk },
          edges: coordinates(lines(hull.map(({ corners: [a, b, c] }) => [a, b, c, a].map((i) => shown[i])))),
          spokes: coordinates(spokes),
          paths: coordinates(paths),
          keys0: { ...coordinates(chosen ? [] : shown), ...symbols },
          keys1: { ...coordinates(chosen ? shown : []), ...symbols },
        },
        readout: readout(own?.share),
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
    return { row, read, tell, input };
  }

  // One of a few ways to show a scene, read as its number.
  function choice({ name, label, options, value }) {
    const row = document.createElement("div");
    const inputs = options.map((_, i) =>
      Object.assign(document.createElement("input"), { type: "radio", name, value: i, defaultChecked: i === value }));
    row.setAttribute("role", "radiogroup");
    row.setAttribute("aria-label", label);
    row.style.cssText = `grid-column: 1 / -1; display: flex; flex-wrap: wrap; justify-content: center; gap: 0 0.7rem;
      align-items: center; min-height: 1.75rem`;
    row.append(`${name}:`, ...inputs.map((input, i) => {
      const option = document.createElement("label");
      option.style.cssText = "display: flex; flex: none; align-items: center; gap: 0.2rem; min-height: 1.75rem";
      input.style.cssText = "min-width: 0; margin: 0";
      option.append(input, options[i]);
      return option;
    }));
    return { row, read: () => inputs.findIndex((input) => input.checked), tell: () => {} };
  }

  // A pointer takes hold of the point whose coordinates two sliders hold, and moves them.
  function handle(plot, [x, y]) {
    const grip = document.createElement("div");
    grip.style.cssText = `position: absolute; width: 2.75rem; height: 2.75rem; margin: -1.375rem;
      outline: 2px dashed; outline-offset: -0.45rem; border-radius: 50%; cursor: grab; touch-action: none`;
    const place = () => {
      const { xaxis, yaxis } = plot._fullLayout;
      grip.style.left = `${xaxis._offset + xaxis.l2p(x.value)}px`;
      grip.style.top = `${yaxis._offset + yaxis.l2p(y.value)}px`;
    };
    grip.addEventListener("pointerdown", ({ pointerId }) => grip.setPointerCapture(pointerId));
    grip.addEventListener("pointermove", ({ pointerId, clientX, clientY }) => {
      if (!grip.hasPointerCapture(pointerId)) return;
      const { xaxis, yaxis } = plot._fullLayout;
      const { left, top } = plot.getBoundingClientRect();
      x.value = xaxis.p2l(clientX - left - xaxis._offset);
      y.value = yaxis.p2l(clientY - top - yaxis._offset);
      x.dispatchEvent(new Event("input", { bubbles: true }));
    });
    plot.style.position = "relative";
    plot.append(grip);
    plot.on("plotly_afterplot", place);
  }

  // Draws the scene that a figure names into it, and returns the controls for the caller to place.
  return (plot) => {
    const { meta } = plot.layout;
    const controls = meta.controls.map((control) => (control.options ? choice : slider)(control));
    const sliders = controls.filter(({ input }) => input);
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
    form.append(...controls.map(({ row }) => row), readout, reset);
    if (meta.draggable) handle(plot, sliders.map(({ input }) => input));

    const draw = () => {
      const scene = scenes[meta.scene](controls.map(({ read }) => read()), meta);
      readout.value = scene.readout;
      const data = plot.data.map((trace) => {
        const computed = scene.traces[trace.meta];
        return { ...trace, ...computed, ...(computed.marker && { marker: { ...trace.marker, ...computed.marker } }) };
      });
      return Plotly.react(plot, data, plot.layout);  // the layout holds the reader's point of view
    };
    let waiting;
    const update = () => {
      controls.forEach(({ tell }) => tell());
      waiting ??= requestAnimationFrame(() => { waiting = undefined; draw(); });
    };
    form.addEventListener("input", update);
    form.addEventListener("reset", () => setTimeout(update));  // the values change after the event
    form.addEventListener("submit", (event) => event.preventDefault());
    controls.forEach(({ tell }) => tell());
    draw();
    return form;
  };
})();
