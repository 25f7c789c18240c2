// Records that did not parse: how many of which kind, and some of them as they came. Whatever they hold is text.

import { h } from "./dom.js";
import { bytes, many, MISSING, moment, whole } from "./format.js";

function kinds(found) {
  const top = Math.max(...found.map((one) => one.count), 1);
  return h(
    "div",
    { class: "errors" },
    found.map((one) =>
      h(
        "div",
        { class: "one", title: one.example ?? "" },
        h("b", {}, one.error_class),
        h("div", { class: "meter", "aria-hidden": "true" }, h("i", { style: { width: `${(100 * one.count) / top}%` } })),
        h("span", { class: "number" }, whole(one.count)),
      ),
    ),
  );
}

function sample(record) {
  return h(
    "div",
    { class: "sample" },
    h(
      "div",
      { class: "line" },
      h("b", {}, record.error_class),
      h("span", { class: "quiet" }, `partition ${record.partition}, offset ${record.offset}`),
      h("span", { class: "quiet" }, moment(record.timestamp)),
      record.key ? h("span", { class: "quiet" }, "key ", h("code", {}, record.key)) : null,
    ),
    h("div", {}, record.error),
    h(
      "pre",
      { tabindex: "0", "aria-label": "value" },
      record.value ?? (record.value_base64 ? `base64 ${record.value_base64}` : MISSING),
    ),
    record.value_is_cut
      ? h("p", { class: "quiet" }, `the first of ${bytes(record.value_bytes)}`)
      : null,
  );
}

export function deadLettersPanel(data) {
  const letters = data.dead_letters;
  if (!letters?.total) return null;
  const samples = letters.samples ?? [];
  return h(
    "section",
    { class: "panel", id: "dead-letters" },
    h(
      "h2",
      {},
      "Dead letters ",
      h("span", { class: "quiet" }, `${many(letters.total, "record")} that did not parse; nothing of them is lost`),
    ),
    kinds(letters.by_error ?? []),
    samples.map(sample),
    samples.length < letters.total
      ? h(
          "p",
          { class: "quiet" },
          `${whole(samples.length)} of ${whole(letters.total)} are shown; all of them: `,
          h("code", {}, `logbus dead-letter show --pipeline ${data.pipeline} ${data.start}`),
        )
      : null,
  );
}
