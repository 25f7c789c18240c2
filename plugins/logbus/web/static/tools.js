// The line above the heat map: a legend that filters, the span, a search; and the head row, whose columns sort.

import { h } from "./dom.js";
import { clock, whole } from "./format.js";
import { SPANS } from "./choices.js";
import { ticks } from "./heatmap.js";
import { STATES } from "./states.js";

export function legend(pipelines, choices, changed) {
  const count = (name) => pipelines.reduce((total, one) => total + (one.states?.[name] ?? 0), 0);
  const toggle = (name) => {
    if (!choices.states.delete(name)) choices.states.add(name);
    changed();
  };
  return h(
    "div",
    { class: "legend", role: "group", "aria-label": "Show only" },
    STATES.map((state) => {
      const found = count(state.name);
      return h(
        "button",
        {
          type: "button",
          class: found ? "" : "none",
          "aria-pressed": String(choices.states.has(state.name)),
          title: state.meaning,
          dataset: { state: state.name, key: state.name },
          onclick: () => toggle(state.name),
        },
        h("span", { class: `swatch s-${state.name}` }),
        state.label,
        h("b", {}, whole(found)),
      );
    }),
  );
}

export function spans(choices, changed) {
  return h(
    "div",
    { class: "choice", role: "group", "aria-label": "Span" },
    SPANS.map(([hours, label]) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": String(hours === choices.shownHours),
          dataset: { hours, key: hours },
          onclick: () => changed(hours),
        },
        label,
      ),
    ),
  );
}

const DAY_MS = 86_400_000;
const dayOf = (instant) => instant.slice(0, 10);

// Which days are shown: up to a date; up to now; or where the newest records are, if they are not in sight.
export function days(choices, data, changed) {
  const { span, now, latest } = data;
  const last = dayOf(new Date(Math.min(Date.parse(span.end), Date.parse(now)) - 1).toISOString());
  const isHidden = latest && (Date.parse(latest) <= Date.parse(span.start) || Date.parse(latest) > Date.parse(span.end));
  const button = (label, until) => h("button", { type: "button", dataset: { key: label }, onclick: () => changed(until) }, label);
  return h(
    "div",
    { class: "choice days", role: "group", "aria-label": "Last day shown" },
    h("input", {
      type: "date",
      "aria-label": "Last day shown, in UTC",
      value: last,
      max: dayOf(now),
      dataset: { key: "last-day" },
      onchange: (event) => {
        const chosen = event.target.value;
        if (!chosen) return;
        const end = Date.parse(`${chosen}T00:00:00Z`) + DAY_MS;
        changed(end > Date.parse(now) ? null : new Date(end).toISOString().replace(".000Z", "Z"));
      },
    }),
    choices.until ? button("Now", null) : null,
    isHidden ? button("Latest data", latest) : null,
  );
}

export function search(choices, changed) {
  return h("input", {
    type: "search",
    id: "search",
    placeholder: "Find a pipeline",
    "aria-label": "Find a pipeline",
    value: choices.search,
    oninput: (event) => changed(event.target.value),
  });
}

const COLUMNS = [
  ["behind", "Behind"],
  ["due", "Oldest waiting"],
  ["rate", "In and loaded, 24 h"],
];

function sortable(choices, changed, order, label, next = order) {
  const button = h("button", { type: "button", dataset: { key: `sort-${next}` }, onclick: () => changed(next) }, label);
  return h("div", { role: "columnheader", "aria-sort": choices.direction(order) }, button);
}

function axis(span, now) {
  const share = (Date.parse(now) - Date.parse(span.start)) / (Date.parse(span.end) - Date.parse(span.start));
  const at = (part) => ({ left: `${(100 * part).toFixed(2)}%` });
  const free = ticks(span).filter((tick) => share > 1 || Math.abs(tick.at - share) > 0.001);
  return h(
    "div",
    { class: "axis", role: "columnheader", "aria-label": `Hours in UTC, up to ${clock(now)}` },
    free.map((tick) => h("span", { class: tick.isBefore ? "before" : "", style: at(tick.at) }, tick.text)),
    share <= 1 ? h("span", { class: "now", style: at(share) }, `${clock(now)} UTC`) : null,
  );
}

// The cells of the head row. The first column switches between trouble first and the names.
export function head(span, now, choices, changed) {
  const first =
    choices.order === "trouble"
      ? sortable(choices, changed, "trouble", "Trouble first", "name")
      : sortable(choices, changed, "name", "Pipeline", choices.order === "name" ? "trouble" : "name");
  return [first, axis(span, now), COLUMNS.map(([order, label]) => sortable(choices, changed, order, label))];
}
