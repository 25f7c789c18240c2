// What was read and what became of it: a sentence with a tick, and where in the partitions it is.

import { h } from "./dom.js";
import { many, span, whole } from "./format.js";
import { prose } from "./prose.js";
import { sum } from "./sums.js";

const PARTS = [
  ["loaded", "loaded", "part-loaded"],
  ["dead_lettered", "dead-lettered", "part-dead"],
  ["filtered", "filtered", "part-filtered"],
];

export function parts(shown) {
  return h(
    "div",
    { class: "bar-parts", "aria-hidden": "true" },
    shown.filter(([, count]) => count).map(([style, count]) => h("i", { class: style, style: { flex: `${count} 1 0` } })),
  );
}

// How to load what is left of an hour that has lost records, which a load refuses by default.
const LEFT = "To load what is left, accept the loss by name: `logbus window accept-loss`. The ledger keeps what is missing, and no audit calls the hour exact.";

// How much time is left to load it.
export function expiry({ cell, now }) {
  if (!cell?.expires_at) return null;
  const what = sum(Object.values(cell.gone ?? {})) ? "more of its records" : "its first records";
  const seconds = (Date.parse(cell.expires_at) - Date.parse(now)) / 1000;
  return h("p", { class: cell.state === "expiring" ? "bad" : "quiet" }, seconds > 0 ? `Retention deletes ${what} in ${span(seconds)}.` : `Retention may delete ${what} now.`);
}

function term(count, label) {
  return h("div", { class: "term" }, h("b", {}, whole(count)), h("span", {}, label));
}

// The one line that says why: the last `error:` of the program's own; the text around it is Spark's report.
function causeOf(text) {
  const lines = text.trim().split("\n").map((line) => line.trim());
  return lines.findLast((line) => /^\S*error: /i.test(line)) ?? lines[0];
}

function tick(equation, isAudited) {
  if (!equation.holds) return h("div", { class: "tick bad" }, h("span", { "aria-hidden": "true" }, "\u2717"), "does not add up");
  return h(
    "div",
    { class: "tick good" },
    h("span", { "aria-hidden": "true" }, "\u2713"),
    isAudited ? "adds up, audited" : "adds up",
  );
}

export function equationPanel(data) {
  const equation = data.equation;
  if (!equation || equation.read === null || equation.read === undefined) {
    const gone = sum(Object.values(data.cell.gone));
    const rest = gone ? `${whole(gone)} of them can no longer be read.` : "the next attempt reads exactly these.";
    const failed = data.attempts?.at(-1)?.state === "failed" ? data.attempts.at(-1) : null;
    return h(
      "section",
      { class: "panel", "aria-labelledby": "equation-title" },
      h("h2", { id: "equation-title" }, failed ? `Nothing is loaded: attempt ${failed.number} failed` : "Nothing is loaded yet"),
      failed?.error ? h("p", { class: "cause" }, prose(causeOf(failed.error))) : null,
      h(
        "p",
        { class: "quiet" },
        `${many(data.records ?? 0, "record")} frozen for this hour; ${rest}`,
      ),
      gone ? h("p", {}, prose(LEFT)) : null,
      expiry(data),
    );
  }
  const [loaded, dead, filtered] = PARTS.map(([name]) => equation[name] ?? 0);
  const lost = data.counts?.lost ?? 0;
  return h(
    "section",
    { class: "panel", "aria-labelledby": "equation-title" },
    h("h2", { id: "equation-title" }, "Every record accounted for"),
    h(
      "div",
      { class: "equation" },
      term(equation.read, "read"),
      h("span", { class: "sign" }, "="),
      term(loaded, "loaded"),
      h("span", { class: "sign" }, "+"),
      term(dead, "dead-lettered"),
      h("span", { class: "sign" }, "+"),
      term(filtered, "filtered"),
      tick(equation, Boolean(data.audited_at)),
    ),
    parts([
      ["part-loaded", loaded],
      ["part-dead", dead],
      ["part-filtered", filtered],
    ]),
    h(
      "div",
      { class: "key" },
      PARTS.map(([, label, style]) => h("span", {}, h("i", { class: style }), label)),
      lost ? h("span", { class: "bad" }, `${many(lost, "record")} lost before they were read`) : null,
      remarks(data.counts),
    ),
    (data.stamped_hours?.sentences ?? []).map((text) => h("p", { class: "hours" }, text)),
  );
}

function remarks(counts) {
  const found = [
    ["late", "stamped before this hour"],
    ["early", "stamped after it"],
  ].filter(([name]) => counts?.[name]);
  return found.map(([name, text]) => h("span", {}, `${whole(counts[name])} ${text}`));
}

export function rangesPanel(data) {
  const ranges = data.ranges ?? [];
  const top = Math.max(...ranges.map((range) => range.end_offset - range.start_offset), 1);
  const row = (range) => {
    const known = range.loaded !== null && range.loaded !== undefined;
    const gone = data.cell.gone[range.partition] ?? 0; // deleted unloaded, and not yet declared lost
    const lost = range.lost + gone;
    const shown = known
      ? [
          ["part-lost", lost],
          ["part-loaded", range.loaded],
          ["part-dead", range.dead_lettered],
        ]
      : [
          ["part-lost", lost],
          ["part-filtered", range.count - gone],
        ];
    const size = Math.max((range.end_offset - range.start_offset) / top, 0.01);
    return h(
      "tr",
      {},
      h("td", { class: "number" }, range.partition),
      h("td", { class: "number mono" }, range.start_offset),
      h("td", { class: "number mono" }, range.end_offset),
      h("td", { class: "number" }, whole(range.count)),
      h("td", { class: "number" }, whole(range.loaded)),
      h("td", { class: `number ${range.dead_lettered ? "warn" : ""}` }, whole(range.dead_lettered)),
      h("td", { class: `number ${lost ? "bad" : ""}` }, whole(lost)),
      h("td", { class: "range-bar" }, h("div", { style: { width: `${(100 * size).toFixed(1)}%` } }, parts(shown))),
    );
  };
  const heads = ["partition", "from offset", "up to", "records", "loaded", "dead", "lost"];
  return h(
    "section",
    { class: "panel" },
    h("h2", {}, "Ranges ", h("span", { class: "quiet" }, "frozen: every load of this hour reads these offsets")),
    h(
      "div",
      { class: "scroll", role: "group", "aria-label": "Ranges", tabindex: "0" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            heads.map((name) => h("th", { class: "number", scope: "col" }, name)),
            h("th", { class: "range-bar" }, h("span", { class: "seen-by-readers" }, "share")),
          ),
        ),
        h("tbody", {}, ranges.map(row)),
      ),
    ),
  );
}
