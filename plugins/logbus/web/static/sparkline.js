// Throughput in a hundred pixels: what was produced as a filled line, what was loaded as a dashed one, on one scale.

import { svg } from "./dom.js";

const WIDTH = 100;
const HEIGHT = 22;

// Points of the known values, as SVG wants them; a gap where nothing is known ends the line and begins another.
export function lines(values, top) {
  const step = values.length > 1 ? WIDTH / (values.length - 1) : 0;
  const parts = [[]];
  values.forEach((value, index) => {
    if (value === null || value === undefined) parts.push([]);
    else parts.at(-1).push(`${(index * step).toFixed(1)},${(HEIGHT - 1 - (value / top) * (HEIGHT - 3)).toFixed(1)}`);
  });
  return parts.filter((part) => part.length > 1);
}

export function sparkline(series, label) {
  if (!series || series.produced.length < 2) return null;
  const { produced, loaded } = series;
  const top = Math.max(...[...produced, ...loaded].filter((value) => Number.isFinite(value)), 0) || 1;
  const area = (part) => `${part[0].split(",")[0]},${HEIGHT} ${part.join(" ")} ${part.at(-1).split(",")[0]},${HEIGHT}`;
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    lines(produced, top).map((part) => [
      svg("polygon", { class: "in-area", points: area(part) }),
      svg("polyline", { class: "in", points: part.join(" ") }),
    ]),
    lines(loaded, top).map((part) => svg("polyline", { class: "out", points: part.join(" ") })),
  );
}
