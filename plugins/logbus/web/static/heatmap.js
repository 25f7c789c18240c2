// The heat map: a row for each pipeline, a cell for each of its windows. Thousands of cells, so each is one bare element; a row is
// rebuilt only when something in it has changed, and the cell that has the focus keeps it.

import { HEAVY_SHARE } from "./choices.js";
import { cellsOf } from "./columns.js";
import { h } from "./dom.js";
import { clock, day, many, parse } from "./format.js";
import { figures, pipelineName } from "./figures.js";
import { stateOf } from "./states.js";

const LETTER_PIXELS = 13; // a cell this wide has room for its letter
const NARROW_PIXELS = 6;
const THIN_PIXELS = 3; // less has no room for a line between two cells
const HOUR_SECONDS = 3_600;
const DAY_MS = 86_400_000;
const LABEL_SHARE = 0.08; // of the axis, which a label takes at its end

export function cellLabel(pipeline, cell) {
  const dead = cell.dead_lettered ? `, ${many(cell.dead_lettered, "dead letter")}` : "";
  const lost = cell.lost ? `, ${many(cell.lost, "record")} lost` : "";
  const records = cell.records === null || cell.records === undefined ? "" : `, ${many(cell.records, "record")}`;
  return `${pipeline.name}, ${day(cell.start)} ${clock(cell.start)}, ${stateOf(cell.state).label}${records}${dead}${lost}`;
}

function cellElement(pipeline, cell, place, previous) {
  const element = document.createElement("div");
  const starts = parse(cell.start);
  element.className = `cell s-${stateOf(cell.state).name}${starts.getTime() % DAY_MS === 0 ? " dawn" : ""}${cell.of_run ? " of-run" : ""}${cell.dead_lettered > HEAVY_SHARE * (cell.records ?? 0) ? " heavy" : ""}`;
  element.setAttribute("role", "gridcell");
  element.tabIndex = -1;
  element.setAttribute("aria-label", cellLabel(pipeline, cell));
  if (place.column !== previous + 1 || place.width > 1) element.style.gridColumn = `${place.column} / span ${place.width}`;
  Object.assign(element, { cell, pipeline });
  return element;
}

// In which column of a strip that has one for every `interval` a cell begins, and how many it fills; null outside.
export function placeOf(cell, span, interval) {
  const step = interval * 1000;
  const from = Math.round((parse(cell.start) - parse(span.start)) / step);
  const until = Math.round((parse(cell.end) - parse(span.start)) / step);
  const columns = Math.round((parse(span.end) - parse(span.start)) / step);
  if (until <= 0 || from >= columns) return null;
  const column = Math.max(from, 0) + 1;
  return { column, width: Math.max(1, Math.min(until, columns) + 1 - column) };
}

function strip(pipeline, span) {
  const interval = pipeline.interval_seconds || span.step_seconds;
  // Days of a time zone have 23 to 25 hours, and begin at any: a column for each hour, and a day fills its own.
  const isZoned = (pipeline.timezone ?? "UTC") !== "UTC";
  const step = isZoned ? HOUR_SECONDS : interval;
  const seconds = (parse(span.end) - parse(span.start)) / 1000;
  const columns = Math.max(1, Math.round(seconds / step));
  let previous = 0;
  const cells = [];
  for (const cell of cellsOf(pipeline)) {
    const place = placeOf(cell, span, step);
    if (place === null) continue;
    cells.push(cellElement(pipeline, cell, place, previous));
    previous = place.column + place.width - 1;
  }
  const element = h(
    "div",
    {
      class: isZoned ? "strip zoned" : "strip",
      role: "none",
      style: { "grid-template-columns": `repeat(${columns}, minmax(0, 1fr))`, "--count": Math.max(1, Math.round(seconds / interval)) },
    },
    cells,
  );
  return { element, cells };
}

function makeRow(pipeline, span) {
  const { element, cells } = strip(pipeline, span);
  return {
    pipeline,
    cells,
    element: h("div", { class: "row", role: "row" }, pipelineName(pipeline), element, figures(pipeline)),
  };
}

// Labels of the time axis: days over a week, hours over a day.
export function ticks(span) {
  const [start, end] = [parse(span.start).getTime(), parse(span.end).getTime()];
  const long = end - start;
  const step = long > 2 * DAY_MS ? DAY_MS : long > DAY_MS ? DAY_MS / 4 : DAY_MS / 8;
  const found = [];
  for (let at = Math.ceil(start / step) * step; at < end; at += step) {
    const iso = new Date(at).toISOString();
    const isDay = at % DAY_MS === 0;
    const isShort = (end - at) / long <= LABEL_SHARE;
    // A day's name is wider than three hours of a day's map, so the tick after it has no label. On a map of days the last is
    // always named: if there is no room after its midnight, the name is before it.
    if (step === DAY_MS / 8 && (at - step) % DAY_MS === 0) continue;
    if (!isShort || step === DAY_MS) found.push({ at: (at - start) / long, text: isDay ? day(iso) : clock(iso), isBefore: isShort });
  }
  return found;
}

export class HeatMap {
  constructor() {
    this.rows = [];
    this.byName = new Map();
    this.head = h("div", { class: "row head", role: "row" });
    this.element = h("div", { class: "panel map", role: "grid", "aria-label": "Hours of each pipeline", "aria-multiselectable": "true" }, this.head);
    new ResizeObserver(() => this.fit()).observe(this.element);
  }

  // `pipelines` in the order in which they are shown.
  show(pipelines, span, now) {
    const focused = document.activeElement?.cell
      ? { name: document.activeElement.pipeline.name, start: document.activeElement.cell.start }
      : null;
    this.rows = pipelines.map((pipeline) => this.row(pipeline, span));
    const elements = [this.head, ...this.rows.map((row) => row.element)];
    const same =
      elements.length === this.element.children.length && elements.every((one, index) => this.element.children[index] === one);
    if (!same) this.element.replaceChildren(...elements);
    const share = (parse(now) - parse(span.start)) / (parse(span.end) - parse(span.start));
    this.element.style.setProperty("--now", share <= 1 ? share.toFixed(4) : "2");
    this.element.classList.toggle("many", pipelines.length > 12);
    this.fit();
    this.restore(focused);
  }

  row(pipeline, span) {
    const said = JSON.stringify([pipeline, span]);
    const known = this.byName.get(pipeline.name);
    if (known?.said === said) return known;
    const made = { ...makeRow(pipeline, span), said };
    this.byName.set(pipeline.name, made);
    return made;
  }

  restore(focused) {
    const row = focused && this.rows.find((one) => one.pipeline.name === focused.name);
    const cell = row?.cells.find((one) => one.cell.start === focused.start);
    if (cell && document.activeElement !== cell) cell.focus({ preventScroll: true });
    if (!this.element.querySelector('.cell[tabindex="0"]')) {
      const last = this.rows[0]?.cells.at(-1);
      if (last) last.tabIndex = 0;
    }
  }

  // Letters where they fit; thinner lines where cells are thin.
  fit() {
    const first = this.element.querySelector(".strip");
    if (!first) return;
    const pixels = first.clientWidth / Number(first.style.getPropertyValue("--count") || 1);
    this.element.classList.toggle("letters", pixels >= LETTER_PIXELS);
    this.element.classList.toggle("narrow", pixels < NARROW_PIXELS);
    this.element.classList.toggle("thin", pixels < THIN_PIXELS);
  }
}
