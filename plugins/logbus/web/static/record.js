// One record as the page of records shows it, and what became of it: its window, and its row or dead letter in each pipeline.

import { facts, notice, sentence } from "./chrome.js";
import { h } from "./dom.js";
import { bytes, hour, many, MISSING, moment } from "./format.js";
import { apiAddress, pageAddress, windowAddress } from "./frame.js";
import { ask } from "./live.js";

// JSON as a tree whose branches fold; anything else as it is.
function tree(value, name, depth = 0) {
  const label = name === null ? "" : `${name}: `;
  if (value === null || typeof value !== "object") return h("div", { class: "leaf" }, h("span", { class: "quiet" }, label), JSON.stringify(value));
  const entries = Object.entries(value);
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  return h(
    "details",
    { open: depth < 1 },
    h(
      "summary",
      {},
      h("span", { class: "quiet" }, label),
      `${open} ${many(entries.length, Array.isArray(value) ? "item" : "member")} ${close}`,
    ),
    entries.map(([key, one]) => tree(one, key, depth + 1)),
  );
}

function parsed(text) {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function body(record, name) {
  if (record[`${name}_base64`]) return h("pre", { tabindex: "0", "aria-label": name }, `base64 ${record[`${name}_base64`]}`);
  const text = record[name];
  if (text === null) return h("span", { class: "quiet" }, "null");
  const value = parsed(text);
  return value === undefined
    ? h("pre", { tabindex: "0", "aria-label": name }, text)
    : h("div", { class: "tree" }, tree(value, null));
}

export function recordItem(topic, record, isOpen = false) {
  const headers = record.headers.map(([name, value]) =>
    h("span", {}, h("span", { class: "quiet" }, `${name}: `), h("code", {}, value ?? "null")),
  );
  return h(
    "li",
    { class: "record" },
    h(
      "div",
      { class: "line" },
      h("a", { href: recordAddress(topic, record) }, h("b", {}, `partition ${record.partition}, offset ${record.offset}`)),
      h("span", {}, record.timestamp ? moment(record.timestamp) : "no timestamp"),
      record.timestamp_type === "logappend" ? h("span", { class: "quiet" }, "set by the broker") : null,
      h("span", { class: "quiet" }, record.value_bytes === null ? "a tombstone" : bytes(record.value_bytes)),
    ),
    record.key !== null || record.key_base64
      ? h("div", { class: "line" }, h("span", { class: "quiet" }, "key "), h("code", {}, record.key ?? `base64 ${record.key_base64}`))
      : null,
    headers.length ? h("div", { class: "line" }, headers) : null,
    body(record, "value"),
    record.value_is_cut ? h("p", { class: "quiet" }, `the beginning of ${bytes(record.value_bytes)}`) : null,
    trace(topic, record, isOpen),
  );
}

export function recordAddress(topic, { partition, offset }) {
  return pageAddress("records", { topic, partition, offset });
}

// Asked for when it is opened: each pipeline's table is searched.
function trace(topic, record, isOpen) {
  const answer = h("div", { class: "trace" });
  async function open(event) {
    if (!event.target.open || answer.hasChildNodes()) return;
    answer.append(h("p", { class: "quiet" }, "Asking\u2026"));
    const address = apiAddress(`topics/${encodeURIComponent(topic)}/records/${record.partition}/${record.offset}`);
    try {
      answer.replaceChildren(...traces((await ask(address)).pipelines));
    } catch (error) {
      answer.replaceChildren(notice("warn", "Not known", sentence(error.message)));
    }
  }
  return h("details", { ontoggle: open, open: isOpen }, h("summary", {}, "Its hour and its row"), answer);
}

function traces(pipelines) {
  if (pipelines.length) return pipelines.map(traceIn);
  return [h("p", { class: "quiet" }, "No pipeline that you may see loads this topic.")];
}

const FATES = {
  "in no window yet": "in no window yet: its hour is not frozen",
  "not loaded yet": "not loaded yet",
  loaded: "loaded",
  "dead letter": "a dead letter: it did not parse",
  "no row": "no row: a filter left it out, or its row was deleted since",
  unknown: "not known",
};

function traceIn(one) {
  const { window } = one;
  const letter = one.dead_letter;
  return h(
    "section",
    {},
    h(
      "p",
      {},
      h("a", { href: pageAddress("pipeline", { pipeline: one.pipeline }) }, one.pipeline),
      window ? [", window ", h("a", { href: windowAddress(one.pipeline, window.start) }, hour(window.start, window.end))] : null,
      `: ${FATES[one.fate]}`,
      one.rows.length ? [`, ${many(one.rows.length, "row")} of `, h("code", {}, one.table)] : null,
      one.rows.length > 1 ? h("span", { class: "bad" }, " (one would be right)") : null,
    ),
    one.problem ? h("p", { class: "bad" }, sentence(one.problem)) : null,
    letter ? h("p", {}, h("b", {}, letter.error_class), ` ${letter.error}`) : null,
    one.rows.map((row) => facts(Object.entries(row).map(([name, value]) => [h("code", {}, name), value === null ? MISSING : String(value)]))),
  );
}
