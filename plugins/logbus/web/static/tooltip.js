// One summary of the cell under the pointer or the focus; screen readers have the cell's own label.

import { h } from "./dom.js";
import { hour, MISSING, whole } from "./format.js";
import { stateOf } from "./states.js";

const GAP_PIXELS = 8;
const ROWS = [
  ["records", "records"],
  ["loaded", "loaded"],
  ["dead_lettered", "dead letters"],
  ["lost", "lost"],
  ["attempts", "attempts"],
];

export function summary(pipeline, cell) {
  const state = stateOf(cell.state);
  const shown = ROWS.filter(([name]) => cell[name] !== null && cell[name] !== undefined && (cell[name] || name === "records"));
  return [
    h("b", {}, pipeline.name),
    h("div", { class: "quiet" }, hour(cell.start, cell.end)),
    h("div", { class: "state" }, h("span", { class: `swatch s-${state.name}` }), state.label),
    h("div", { class: "quiet" }, state.meaning),
    shown.length
      ? h(
          "dl",
          {},
          shown.map(([name, label]) => [h("dt", {}, label), h("dd", {}, whole(cell[name]) ?? MISSING)]),
        )
      : null,
    cell.note ? h("div", { class: "note" }, cell.note) : null,
  ].filter(Boolean);
}

export function attachTooltip(map) {
  const tip = h("div", { class: "tip hidden", "aria-hidden": "true" });
  document.body.append(tip);
  const hide = () => tip.classList.add("hidden");
  const show = (event) => {
    const cell = event.target.closest?.(".cell");
    if (!cell) return hide();
    tip.replaceChildren(...summary(cell.pipeline, cell.cell));
    tip.classList.remove("hidden");
    place(tip, cell.getBoundingClientRect());
  };
  map.element.addEventListener("pointerover", show);
  map.element.addEventListener("pointerleave", hide);
  map.element.addEventListener("focusin", show);
  map.element.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  window.addEventListener("scroll", hide, { passive: true });
}

// Above the cell where there is room, else below; never beyond the page's sides.
function place(tip, cell) {
  const size = tip.getBoundingClientRect();
  const left = Math.min(
    Math.max(cell.left + cell.width / 2 - size.width / 2, GAP_PIXELS),
    window.innerWidth - size.width - GAP_PIXELS,
  );
  const above = cell.top - size.height - GAP_PIXELS;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > GAP_PIXELS ? above : cell.bottom + GAP_PIXELS}px`;
}
