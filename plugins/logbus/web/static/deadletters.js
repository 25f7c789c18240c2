// Records that did not parse, by the shape of their error: how many of each, and the first of them as received. Their content is
// always shown as text.

import { h } from "./dom.js";
import { bytes, many, MISSING, moment, whole } from "./format.js";
import { copyable } from "./prose.js";
import { recordAddress } from "./record.js";
import { sum } from "./sums.js";

function sample(record, topic) {
  return h(
    "div",
    { class: "sample" },
    h(
      "div",
      { class: "line" },
      h("a", { href: recordAddress(topic, record) }, `partition ${record.partition}, offset ${record.offset}`),
      h("span", { class: "quiet" }, moment(record.timestamp)),
      record.key ? h("span", { class: "quiet" }, "key ", h("code", {}, record.key)) : null,
    ),
    h(
      "pre",
      { tabindex: "0", "aria-label": "value" },
      record.value ?? (record.value_base64 ? `base64 ${record.value_base64}` : MISSING),
    ),
    record.value_is_cut ? h("p", { class: "quiet" }, `the first of ${bytes(record.value_bytes)}`) : null,
  );
}

function shape(one, letters, topic) {
  return h(
    "section",
    { class: "shape" },
    h(
      "div",
      { class: "errors" },
      h(
        "div",
        { class: "one" },
        h("b", {}, one.error_class),
        h(
          "div",
          { class: "meter", "aria-hidden": "true" },
          h("i", { style: { width: `${(100 * one.count) / letters.total}%` } }),
        ),
        h("span", { class: "number" }, whole(one.count)),
      ),
    ),
    h("p", {}, one.error),
    one.samples.map((record) => sample(record, topic)),
    one.samples.length < one.count ? h("p", { class: "quiet" }, `the first ${one.samples.length} of ${whole(one.count)}`) : null,
  );
}

export function deadLettersPanel(data) {
  const letters = data.dead_letters;
  if (!letters?.total) return null;
  const told = sum(letters.shapes.map((one) => one.count));
  return h(
    "section",
    { class: "panel", id: "dead-letters" },
    h(
      "h2",
      {},
      "Dead letters ",
      h("span", { class: "quiet" }, `${many(letters.total, "record")} that did not parse; none of them is lost`),
    ),
    letters.shapes.map((one) => shape(one, letters, data.topic)),
    told < letters.total ? h("p", { class: "quiet" }, `and ${whole(letters.total - told)} that fail in other ways`) : null,
    h("p", { class: "quiet" }, "All of them: ", copyable(`logbus dead-letter show --pipeline ${data.pipeline} ${data.start}`)),
  );
}
