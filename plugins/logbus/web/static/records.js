// Records of a topic: the last ones, those from an instant on, or those from an offset on. The page does not refresh itself, so that a
// record stays while it is read.

import { empty, furnish, notice, problem } from "./chrome.js";
import { byId, h, replace } from "./dom.js";
import { bytes, many, MISSING, moment, share, whole } from "./format.js";
import { apiAddress, asked, pageAddress } from "./frame.js";
import { ask } from "./live.js";
import { copyable } from "./prose.js";

const topic = asked.get("topic");
const COUNTS = [20, 50, 100];
const chosen = {
  from: asked.get("offset") !== null ? "offset" : asked.get("since") ? "since" : "last",
  since: asked.get("since") ?? "",
  offset: asked.get("offset") ?? "0",
  partition: asked.get("partition") ?? "",
  count: "20",
};
const spots = { tools: h("form", { class: "tools" }), partitions: h("div", {}), records: h("div", {}) };

function wanted() {
  const values = { count: chosen.count, partition: chosen.partition || null };
  if (chosen.from === "since") values.since = chosen.since;
  if (chosen.from === "offset") values.offset = chosen.offset;
  return values;
}

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

function one(record) {
  const headers = record.headers.map(([name, value]) =>
    h("span", {}, h("span", { class: "quiet" }, `${name}: `), h("code", {}, value ?? "null")),
  );
  return h(
    "li",
    { class: "record" },
    h(
      "div",
      { class: "line" },
      h("b", {}, `partition ${record.partition}, offset ${record.offset}`),
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
  );
}

const held = (part) => part.end_offset - part.start_offset;

// How evenly producers fill the partitions: the largest against an even share.
function skew(parts) {
  const total = parts.reduce((sum, part) => sum + held(part), 0);
  if (parts.length < 2 || !total) return null;
  const largest = parts.reduce((one, other) => (held(other) > held(one) ? other : one));
  const times = (held(largest) * parts.length) / total;
  if (times < 2) return null;
  return notice(
    "warn",
    "The partitions are filled unevenly",
    `Partition ${largest.partition} has ${share(held(largest) / total)} of the records, ${times.toFixed(1)} times its share. ` +
      "Records with one key go to one partition; those without a host or a key may, too.",
  );
}

function partitions(parts) {
  const newest = parts
    .map((part) => part.newest_at)
    .filter(Boolean)
    .sort()
    .at(-1);
  const top = Math.max(1, ...parts.map(held));
  return [
    skew(parts),
    h(
      "p",
      {},
      `${many(
        parts.reduce((sum, part) => sum + held(part), 0),
        "record",
      )} in ${many(parts.length, "partition")}, the newest of `,
      h("b", {}, moment(newest)),
    ),
    h(
      "details",
      {},
      h("summary", {}, "Partitions"),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          {},
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["partition", "first offset", "end offset", "records", "", "newest record"].map((name, place) =>
                h("th", { scope: "col", class: place > 0 && place < 4 ? "number" : null }, name),
              ),
            ),
          ),
          h(
            "tbody",
            {},
            parts.map((part) =>
              h(
                "tr",
                {},
                h("td", {}, String(part.partition)),
                [part.start_offset, part.end_offset, held(part)].map((value) => h("td", { class: "number" }, whole(value))),
                h(
                  "td",
                  {},
                  h("span", { class: "share", "aria-hidden": "true" }, h("i", { style: { width: `${(100 * held(part)) / top}%` } })),
                ),
                h("td", {}, part.newest_at ? moment(part.newest_at) : MISSING),
              ),
            ),
          ),
        ),
      ),
    ),
  ];
}

function select(label, name, options) {
  return h(
    "select",
    { "aria-label": label, onchange: (event) => choose(name, event.target.value) },
    options.map(([value, text]) => h("option", { value, selected: value === chosen[name] }, text)),
  );
}

function choose(name, value) {
  chosen[name] = value;
  tools();
  if (chosen.from !== "since" || chosen.since) now();
}

let known = [];

// The same in a terminal, where it can also be followed.
function command() {
  const part = chosen.partition ? ` -p ${chosen.partition}` : "";
  const from = { last: `-${chosen.count}`, since: `s@${chosen.since}`, offset: chosen.offset }[chosen.from];
  return `logbus consume ${topic}${part} -o ${from} -c ${chosen.count}`;
}

function tools() {
  const instant = h("input", {
    type: "datetime-local",
    step: "1",
    "aria-label": "From when on, in UTC",
    value: chosen.since.replace("Z", ""),
    onchange: (event) => choose("since", event.target.value ? `${event.target.value}Z` : ""),
  });
  const offset = h("input", {
    type: "number",
    min: "0",
    "aria-label": "From which offset on",
    value: chosen.offset,
    onchange: (event) => choose("offset", event.target.value || "0"),
  });
  replace(
    spots.tools,
    select("Where to begin", "from", [
      ["last", "The last records"],
      ["since", "From a time (UTC)"],
      ["offset", "From an offset"],
    ]),
    chosen.from === "since" ? instant : chosen.from === "offset" ? offset : null,
    select("Partition", "partition", [
      ["", "all partitions"],
      ...known.map((part) => [String(part.partition), `partition ${part.partition}`]),
    ]),
    select(
      "How many",
      "count",
      COUNTS.map((count) => [String(count), many(count, "record")]),
    ),
    h("button", { class: "button", type: "submit" }, "Look again"),
  );
}

function show(data) {
  if (data.partitions.length !== known.length) {
    known = data.partitions;
    tools();
  }
  replace(spots.partitions, partitions(data.partitions));
  const isLast = chosen.from === "last";
  const records = isLast ? [...data.records].reverse() : data.records;
  replace(
    spots.records,
    data.is_whole ? null : notice("warn", "Not all are shown", "The broker is slow, or the records are large: choose one partition, or fewer records."),
    records.length
      ? h("ol", { class: "records", "aria-label": isLast ? "Records, the newest first" : "Records" }, records.map(one))
      : h("p", { class: "quiet" }, isLast ? "The topic holds no record." : "There is no record there or after it."),
    h("p", { class: "quiet" }, "In a terminal: ", copyable(command())),
  );
}

async function now() {
  try {
    const data = await ask(apiAddress(`topics/${encodeURIComponent(topic)}/records`, wanted()));
    replace(byId("notices"));
    byId("fresh").textContent = `as of ${moment(data.now)}`;
    byId("fresh").className = "fresh";
    show(data);
  } catch (error) {
    byId("fresh").textContent = error.status === 0 || error.status >= 500 ? "not answering" : "not shown";
    byId("fresh").className = "fresh stale";
    spots.partitions.querySelector(".asking")?.replaceWith(h("p", { class: "quiet" }, "Not known."));
    replace(byId("notices"), problem({ error, data: null, pause: () => 0 }));
  }
}

furnish("records", []);
if (topic) {
  document.title = `${topic} \u00b7 logbus`;
  spots.tools.addEventListener("submit", (event) => {
    event.preventDefault();
    now();
  });
  byId("page").replaceChildren(
    h(
      "div",
      { class: "crumbs" },
      h("a", { href: pageAddress("topics") }, "Topics and groups"),
      h("span", { class: "quiet" }, "/"),
      h("h1", {}, topic),
    ),
    h("section", { class: "panel" }, h("h2", {}, "What it holds"), spots.partitions),
    h("section", { class: "panel" }, h("h2", {}, "Records"), spots.tools, spots.records),
  );
  spots.partitions.append(h("p", { class: "quiet asking" }, "Asking the broker\u2026"));
  tools();
  now();
} else {
  byId("page").replaceChildren(
    empty("No topic was asked for", "Choose one on the page of topics."),
    h("a", { href: pageAddress("topics") }, "All topics"),
  );
}
