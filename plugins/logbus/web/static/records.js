// Records of a topic: the last ones, those from an instant or an offset on, those that a filter takes, or the newest as they arrive.
// Unless it follows the topic, the page does not refresh itself, so that a record stays while it is read.

import { empty, furnish, notice, problem } from "./chrome.js";
import { byId, h, replace } from "./dom.js";
import { bytes, many, MISSING, moment, share, whole } from "./format.js";
import { apiAddress, asked, pageAddress } from "./frame.js";
import { ask, Poll } from "./live.js";
import { copyable } from "./prose.js";
import { recordItem } from "./record.js";

const topic = asked.get("topic");
const COUNTS = [20, 50, 100];
const STEPS_MAX = 10; // of a search, without another click: each reads up to 32 MiB
const FOLLOWED_MAX = 200; // records that stay on the page while it follows
const range = asked.get("starting_offsets")
  ? { starting_offsets: asked.get("starting_offsets"), ending_offsets: asked.get("ending_offsets") }
  : null;
const chosen = {
  from: range ? "range" : asked.get("offset") !== null ? "offset" : asked.get("since") ? "since" : "last",
  since: asked.get("since") ?? "",
  until: asked.get("until") ?? "",
  offset: asked.get("offset") ?? "0",
  partition: asked.get("partition") ?? "",
  count: "20",
  text: asked.get("text") ?? "",
  key: asked.get("key") ?? "",
  header: asked.get("header") ?? "",
};
const FILTERS = [
  ["text", "Text in the value"],
  ["key", "Key"],
  ["header", "Header, name=value"],
];
const spots = {
  tools: h("form", { class: "tools" }),
  partitions: h("div", {}),
  state: h("div", { role: "status" }),
  list: h("ol", { class: "records", "aria-label": "Records" }),
  foot: h("div", {}),
};

const filters = () => Object.fromEntries(FILTERS.map(([name]) => [name, chosen[name] || null]));
const isFiltered = () => FILTERS.some(([name]) => chosen[name]);

function wanted() {
  const values = { count: chosen.count, ...filters() };
  if (chosen.from === "range") return { ...values, ...range };
  values.partition = chosen.partition || null;
  if (chosen.from === "since") Object.assign(values, { since: chosen.since, until: chosen.until || null });
  if (chosen.from === "beginning") values.offset = "0";
  if (chosen.from === "offset") values.offset = chosen.offset;
  return values;
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
  if (follower) follow();
  else if (chosen.from !== "since" || chosen.since) look();
}

let known = [];

const quoted = (text) => (/^[\w=.:/@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// The same in a terminal.
function command() {
  const first = range && /^(\d+):(\d+)$/.exec(range.starting_offsets);
  if (chosen.from === "range" && !first && !follower) return null; // it has no word for a range in each of several partitions
  const part = chosen.from === "range" && first ? ` -p ${first[1]}` : chosen.partition ? ` -p ${chosen.partition}` : "";
  const words = FILTERS.filter(([name]) => chosen[name]).map(([name]) => ` --${name} ${quoted(chosen[name])}`);
  if (follower) return `logbus consume ${topic}${part} -o end -f${words.join("")}`;
  const until = chosen.until ? ` -o e@${chosen.until}` : "";
  const from = { last: `-${chosen.count}`, since: `s@${chosen.since}${until}`, offset: chosen.offset, beginning: "beginning", range: first?.[2] };
  return `logbus consume ${topic}${part} -o ${from[chosen.from]} -c ${chosen.count}${words.join("")}`;
}

function input(name, attributes) {
  return h("input", { onchange: (event) => choose(name, event.target.value), value: chosen[name], ...attributes });
}

function instant(name, label) {
  return input(name, {
    type: "datetime-local",
    step: "1",
    "aria-label": label,
    value: chosen[name].replace("Z", ""),
    onchange: (event) => choose(name, event.target.value ? `${event.target.value}Z` : ""),
  });
}

function tools() {
  const offset = input("offset", {
    type: "number",
    min: "0",
    "aria-label": "From which offset on",
    onchange: (event) => choose("offset", event.target.value || "0"),
  });
  const from = {
    since: [instant("since", "From when on, in UTC"), instant("until", "Until when, in UTC")],
    offset: [offset],
  };
  replace(
    spots.tools,
    select("Where to begin", "from", [
      ["last", "The last records"],
      ["beginning", "From the beginning"],
      ["since", "From a time (UTC)"],
      ["offset", "From an offset"],
      ...(range ? [["range", "These offsets"]] : []),
    ]),
    from[chosen.from] ?? null,
    chosen.from === "range"
      ? null
      : select("Partition", "partition", [
          ["", "all partitions"],
          ...known.map((part) => [String(part.partition), `partition ${part.partition}`]),
        ]),
    select(
      "How many",
      "count",
      COUNTS.map((count) => [String(count), many(count, "record")]),
    ),
    FILTERS.map(([name, label]) =>
      h("input", {
        type: "search",
        value: chosen[name],
        placeholder: label,
        "aria-label": label,
        dataset: { key: name },
        oninput: (event) => (chosen[name] = event.target.value),
      }),
    ),
    h("button", { class: "button", type: "submit" }, "Look"),
    h(
      "button",
      { class: "button", type: "button", onclick: () => (follower ? rest() : follow()) },
      follower ? "Stop following" : "Follow",
    ),
  );
}

function told(partitionList) {
  if (partitionList.length !== known.length) {
    known = partitionList;
    tools();
  }
  replace(spots.partitions, partitions(partitionList));
}

function foot(...children) {
  const line = command();
  replace(spots.foot, ...children, line ? h("p", { class: "quiet" }, "In a terminal: ", copyable(line)) : null);
}

function items(records) {
  const isAsked = (record) => ["partition", "offset"].every((name) => String(record[name]) === asked.get(name));
  return records.map((record) => recordItem(topic, record, isAsked(record)));
}

// A search goes on by itself until it has found enough, but not forever: a topic may hold terabytes.
const searched = { offsets: 0, left: 0, bytes: 0, found: 0, next: null };
let turn = 0; // what is asked for now; an answer to an earlier question is dropped

async function look(next = null) {
  const mine = (turn += 1);
  follower?.stop();
  follower = null;
  if (isFiltered() && chosen.from === "last") chosen.from = "beginning"; // a search reads forward
  tools();
  if (!next) Object.assign(searched, { offsets: 0, left: 0, bytes: 0, found: 0 });
  const enough = searched.found + Number(chosen.count);
  let isFirst = !next;
  let values = next ?? wanted();
  for (let step = 0; values && step < STEPS_MAX && searched.found < enough; step += 1) {
    searched.next = values;
    if (isFiltered()) replace(spots.state, progress(true));
    const data = await answered(`topics/${encodeURIComponent(topic)}/records`, values);
    if (mine !== turn || !data) return;
    if (isFirst) spots.list.replaceChildren();
    isFirst = false;
    show(data);
    if (!data.search) return;
    values = count(data);
  }
  searched.next = values;
  replace(spots.state, progress(false));
}

// Adds a step to what was searched; returns what the next one asks for, null at the end.
function count({ records, search }) {
  searched.offsets += search.offsets_read;
  searched.left = search.offsets_left;
  searched.bytes += search.bytes_read;
  searched.found += records.length;
  const { next_offsets: starting_offsets, ending_offsets } = search;
  return starting_offsets ? { count: chosen.count, ...filters(), starting_offsets, ending_offsets } : null;
}

function progress(isRunning) {
  const { offsets, left, bytes: read, found, next } = searched;
  const part = left ? `${whole(offsets)} of ${many(offsets + left, "offset")}` : many(offsets, "offset");
  const button = { class: "button", type: "button" };
  return h(
    "p",
    {},
    `${isRunning ? "Searching" : "Searched"}: ${part}, ${bytes(read)}, ${whole(found)} found `,
    isRunning ? h("button", { ...button, onclick: end }, "Stop") : null,
    next && !isRunning ? h("button", { ...button, onclick: () => look(next) }, "Continue") : null,
  );
}

// Ends a search at once: the step that is under way ends within seconds, and no other follows.
function end() {
  turn += 1;
  replace(spots.state, progress(false));
}

function show(data) {
  told(data.partitions);
  const isLast = chosen.from === "last";
  const records = isLast ? [...data.records].reverse() : data.records;
  spots.list.setAttribute("aria-label", isLast ? "Records, the newest first" : "Records");
  if (!data.search) replace(spots.state, remarks(data));
  spots.list.append(...items(records));
  const nothing = isLast ? "The topic holds no record." : "There is no record there or after it.";
  foot(spots.list.children.length || data.search ? null : h("p", { class: "quiet" }, nothing));
}

function remarks(data) {
  const first = data.records[0];
  const isMissing = chosen.from === "offset" && chosen.partition && first && String(first.offset) !== chosen.offset;
  return [
    data.is_whole ? null : notice("warn", "Not all are shown", "The broker is slow, or the records are large: choose one partition, or fewer records."),
    isMissing
      ? notice("warn", `There is no record at offset ${chosen.offset}`, "It was deleted, or never was one. The next that is there is shown.")
      : null,
  ];
}

let follower = null;
const followed = { next_offsets: null, passed: 0, count: 0 };

function follow() {
  turn += 1;
  follower?.stop();
  Object.assign(followed, { next_offsets: null, passed: 0, count: 0 });
  spots.list.replaceChildren();
  spots.list.setAttribute("aria-label", "Records, the newest first");
  const values = () => ({ ...filters(), partition: chosen.partition || null, next_offsets: followed.next_offsets });
  follower = new Poll({
    address: () => apiAddress(`topics/${encodeURIComponent(topic)}/tail`, values()),
    show: arrived,
    tell: (poll) => {
      fresh(poll.error, poll.data);
      replace(byId("notices"), problem(poll));
    },
  });
  tools();
  foot();
  replace(spots.state, h("p", {}, "Following: waiting for records\u2026"));
  follower.now();
}

function arrived(data) {
  followed.next_offsets = data.next_offsets;
  followed.passed += data.passed_over;
  followed.count += data.records.length;
  spots.list.prepend(...items([...data.records].reverse()));
  while (spots.list.children.length > FOLLOWED_MAX) spots.list.lastElementChild.remove();
  const passed = followed.passed ? `, ${whole(followed.passed)} passed over: more arrive than can be read here` : "";
  replace(spots.state, h("p", {}, `Following: ${many(followed.count, "record")}${passed}`));
}

function rest() {
  follower.stop();
  follower = null;
  tools();
  foot();
  replace(spots.state, h("p", {}, "Stopped: nothing is read any more."));
}

function fresh(error, data) {
  const failing = error && (error.status === 0 || error.status >= 500) ? "not answering" : "not shown";
  byId("fresh").textContent = error ? failing : `as of ${moment(data.now)}`;
  byId("fresh").className = error ? "fresh stale" : "fresh";
}

async function answered(path, values) {
  try {
    const data = await ask(apiAddress(path, values));
    replace(byId("notices"));
    fresh(null, data);
    return data;
  } catch (error) {
    fresh(error);
    spots.partitions.querySelector(".asking")?.replaceWith(h("p", { class: "quiet" }, "Not known."));
    replace(byId("notices"), problem({ error, data: null, pause: () => 0 }));
    return null;
  }
}

furnish("records", []);
if (topic) {
  document.title = `${topic} \u00b7 logbus`;
  spots.tools.addEventListener("submit", (event) => {
    event.preventDefault();
    look();
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
    h("section", { class: "panel" }, h("h2", {}, "Records"), spots.tools, spots.state, spots.list, spots.foot),
  );
  spots.partitions.append(h("p", { class: "quiet asking" }, "Asking the broker\u2026"));
  look();
} else {
  byId("page").replaceChildren(
    empty("No topic was asked for", "Choose one on the page of topics."),
    h("a", { href: pageAddress("topics") }, "All topics"),
  );
}
