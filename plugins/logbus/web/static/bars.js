// A bar for each hour: how one figure of a pipeline's hours developed. The text next to it says the same, so the picture is hidden
// from screen readers.

import { h, svg } from "./dom.js";
import { MISSING, day, clock } from "./format.js";
import { known } from "./sums.js";

const HEIGHT = 40;
const STEP = 4; // of which a bar fills three

export function median(values) {
  const sorted = known(values).sort((one, other) => one - other);
  if (!sorted.length) return null;
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function drawing(values, top) {
  const width = values.length * STEP;
  return svg(
    "svg",
    { class: "bars", viewBox: `0 0 ${width} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    values.map((value, place) => {
      if (!value) return null;
      const height = Math.max(1, (HEIGHT * value) / top);
      return svg("rect", { x: place * STEP, y: HEIGHT - height, width: STEP - 1, height });
    }),
  );
}

// `show` formats a value; `starts` are the hours of the values.
export function trend(title, values, starts, show) {
  const top = Math.max(...known(values), 0);
  const at = starts[values.indexOf(top)];
  return h(
    "figure",
    { class: "trend" },
    h("figcaption", {}, h("h3", {}, title), h("b", {}, show(values.at(-1) ?? null)), h("span", { class: "quiet" }, "the last hour")),
    top ? drawing(values, top) : h("div", { class: "bars" }),
    h(
      "div",
      { class: "quiet" },
      `median ${show(median(values))}, most ${show(top)}`,
      top && at ? ` (${day(at)} ${clock(at)})` : "",
      known(values).length ? "" : MISSING,
    ),
  );
}
