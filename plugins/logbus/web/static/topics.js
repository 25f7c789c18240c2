// The page "Topics and groups": what the broker holds, how fast it grows, and how far each group has read.

import { empty, furnish, keepFresh, notice, problem, places, freshness } from "./chrome.js";
import { byId, h, replace } from "./dom.js";
import { bytes, many, MISSING, moment, rate, short, span, whole } from "./format.js";
import { apiAddress, pageAddress } from "./frame.js";
import { Poll } from "./live.js";
import { SortedTable } from "./sorted.js";
import { sum } from "./sums.js";

function share(value, top, style = "") {
  if (!value || !top) return null;
  return h("span", { class: `share ${style}`, "aria-hidden": "true" }, h("i", { style: { width: `${(100 * value) / top}%` } }));
}

function retention(topic) {
  const kept = topic.retention;
  if (!kept) return MISSING;
  if (kept.managed) return "managed";
  const limits = [kept.ms > 0 ? span(kept.ms / 1000) : null, kept.bytes > 0 ? bytes(kept.bytes) : null].filter(Boolean);
  return limits.join(", ") || (kept.managed === null ? MISSING : "forever");
}

function small(heads, rows) {
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        heads.map((name, place) =>
          h("th", { scope: "col", class: rows.some((cells) => typeof cells[place] === "number") ? "number" : null }, name),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map((cells) =>
        h(
          "tr",
          {},
          cells.map((cell) =>
            h(
              "td",
              { class: typeof cell === "number" ? "number" : null },
              typeof cell === "number" ? whole(cell) : (cell ?? MISSING),
            ),
          ),
        ),
      ),
    ),
  );
}

function partitions(topic) {
  const rows = topic.partition_list.map((part) => [
    String(part.partition),
    part.leader === null ? "none" : String(part.leader),
    part.start_offset,
    part.end_offset,
    difference(part.end_offset, part.start_offset),
    `${topic.size_is_estimated ? "~" : ""}${bytes(part.size_bytes)}`,
  ]);
  return [
    trouble(topic.problem),
    h("p", {}, h("a", { class: "button", href: pageAddress("records", { topic: topic.name }) }, "Look at its records")),
    small(["partition", "leader", "first offset", "end offset", "records", "size"], rows),
    audits(topic),
  ];
}

const AUDITED = ["exact", "wrong", "unknown", "missing", "doubled", "foreign", "foreign_in_hours"];

// Tables that something else loads from the topic, as `logbus audit-table` last found them.
function audits(topic) {
  if (!topic.audits?.length) return null;
  const heads = ["audited table", "hours exact", "hours wrong", "hours unknown", "missing", "doubled", "foreign", "of these hours"];
  return small(
    [...heads, "audited"],
    topic.audits.map((audit) => [audit.table, ...AUDITED.map((name) => audit[name]), moment(audit.audited_at)]),
  );
}

const difference = (end, start) => (typeof end === "number" && typeof start === "number" ? end - start : null);

function pipelinesOf(topic) {
  return topic.pipelines?.length
    ? topic.pipelines.flatMap((name, index) => [index ? ", " : "", h("a", { href: pageAddress("pipeline", { pipeline: name }) }, name)])
    : MISSING;
}

const topicTable = new SortedTable({
  label: "Topics",
  key: (topic) => topic.name,
  inner: partitions,
  changed: () => draw(),
  columns: [
    { label: "Topic", of: (topic) => topic.name, show: (topic) => topic.name },
    { label: "Partitions", isNumber: true, of: (topic) => topic.partitions, show: (topic) => whole(topic.partitions) },
    { label: "Records", isNumber: true, of: (topic) => topic.records, show: (topic) => [short(topic.records)] },
    {
      label: "Size",
      isNumber: true,
      isLater: true,
      of: (topic) => topic.size_bytes,
      show: (topic) => [`${topic.size_is_estimated ? "~" : ""}${bytes(topic.size_bytes)}`, share(topic.size_bytes, tops.size)],
    },
    {
      label: "Coming in",
      isNumber: true,
      of: (topic) => topic.produced_per_second,
      show: (topic) => [rate(topic.produced_per_second), share(topic.produced_per_second, tops.rate)],
    },
    { label: "Kept", isLater: true, of: (topic) => (topic.retention?.ms > 0 ? topic.retention.ms : null), show: retention },
    { label: "Replicas", isNumber: true, isLater: true, of: (topic) => topic.replicas, show: (topic) => whole(topic.replicas) },
    { label: "Loaded by", isLater: true, of: (topic) => topic.pipelines?.join() || null, show: pipelinesOf },
  ],
});

// Without offsets there is no lag; with offsets in topics that are gone it is unknown.
function lagOf(group) {
  if (group.lag !== null) return whole(group.lag);
  const hasOffsets = group.problem || group.partitions?.some((part) => part.committed_offset !== null);
  return hasOffsets ? "not known" : "no offsets";
}

function trouble(text) {
  return text ? h("p", { class: "bad" }, text) : null;
}

function members(group) {
  const rows = (group.members ?? []).map((member) => [
    member.client_id,
    member.host,
    member.assignments?.map((one) => `${one.topic}-${one.partition}`).join(", ") || "nothing assigned",
    member.lag,
  ]);
  const offsets = (group.partitions ?? []).map((part) => [
    `${part.topic}-${part.partition}`,
    part.committed_offset,
    part.end_offset,
    part.lag,
    part.member_id ?? "no member",
  ]);
  return [
    trouble(group.problem),
    rows.length ? small(["member", "host", "assigned", "lag"], rows) : h("p", { class: "quiet" }, "No members now."),
    offsets.length
      ? h("p", {}, small(["partition", "committed", "end", "lag", "read by"], offsets))
      : h("p", { class: "quiet" }, "It has committed no offsets."),
  ];
}

const groupTable = new SortedTable({
  label: "Groups",
  key: (group) => group.group_id,
  inner: members,
  changed: () => draw(),
  order: 3,
  columns: [
    { label: "Group", of: (group) => group.group_id, show: (group) => group.group_id },
    { label: "State", of: (group) => group.state, show: (group) => [h("span", { class: `dot ${group.state}` }), group.state] },
    { label: "Members", isNumber: true, of: (group) => group.members?.length, show: (group) => whole(group.members?.length) },
    {
      label: "Lag",
      isNumber: true,
      of: (group) => group.lag,
      show: (group) => [lagOf(group), share(group.lag, tops.lag, "lag")],
    },
    {
      label: "Partitions",
      isNumber: true,
      isLater: true,
      of: (group) => group.partitions?.length,
      show: (group) => whole(group.partitions?.length),
    },
    { label: "Assigned by", isLater: true, of: (group) => group.protocol, show: (group) => group.protocol || MISSING },
  ],
});

const tops = { size: 0, rate: 0, lag: 0 };
let search = "";
const matches = (name) => name.toLowerCase().includes(search);
const largest = (items, of) => Math.max(0, ...items.map((item) => of(item) ?? 0));
const spots = { totals: h("div", { class: "totals" }), topics: h("div", {}), groups: h("div", {}) };

function build() {
  const find = h("input", {
    type: "search",
    placeholder: "Find a name",
    "aria-label": "Find a topic or group",
    oninput: (event) => {
      search = event.target.value.toLowerCase();
      draw();
    },
  });
  byId("page").replaceChildren(
    h("div", { class: "tools" }, h("h1", {}, "Topics and groups"), find),
    spots.totals,
    h("section", { class: "panel" }, h("h2", {}, "Topics"), spots.topics),
    h("section", { class: "panel" }, h("h2", {}, "Consumer groups"), spots.groups),
  );
}

function draw() {
  const [topics, groups] = [topicPoll.data?.topics ?? [], groupPoll.data?.groups ?? []];
  if (!spots.totals.isConnected) build();
  Object.assign(tops, {
    size: largest(topics, (one) => one.size_bytes),
    rate: largest(topics, (one) => one.produced_per_second),
    lag: largest(groups, (one) => one.lag),
  });
  const total = (of) => sum(topics.map(of));
  replace(
    spots.totals,
    [
      [isTold(topicPoll) ? many(topics.length, "topic") : MISSING, isTold(topicPoll) ? "" : " topics"],
      [short(total((one) => one.records)), " records"],
      [bytes(total((one) => one.size_bytes)), ""],
      [rate(total((one) => one.produced_per_second)), " coming in"],
      [isTold(groupPoll) ? many(groups.length, "group") : MISSING, isTold(groupPoll) ? "" : " groups"],
    ].map(([value, label]) => h("span", {}, h("b", {}, value), label)),
  );
  const [foundTopics, foundGroups] = [topics.filter((one) => matches(one.name)), groups.filter((one) => matches(one.group_id))];
  replace(
    spots.topics,
    foundTopics.length
      ? topicTable.show(foundTopics)
      : nothing(topicPoll, "No topic yet. Make one, or ship a log:", "logbus ship access.log --topic access_log"),
  );
  replace(
    spots.groups,
    foundGroups.length
      ? groupTable.show(foundGroups)
      : nothing(groupPoll, "No consumer group yet. Windows need none: their offsets are in the ledger."),
  );
}

// Whether the broker has answered: before that nothing is known, and an empty list does not mean "0 topics".
function isTold(poll) {
  return poll.data !== null && poll.data.broker?.state !== "down";
}

function nothing(poll, text, command) {
  if (!isTold(poll)) return h("p", { class: "quiet" }, "Not known yet.");
  return search ? h("p", { class: "quiet" }, "No name matches. Clear the search to see all.") : empty("", text, command);
}

function tell() {
  const worst = groupPoll.error && !topicPoll.error ? groupPoll : topicPoll;
  freshness(worst);
  replace(byId("notices"), problem(worst), worst.error ? [] : places(worst.data));
}

const topicPoll = new Poll({ address: () => apiAddress("topics"), show: draw, tell });
const groupPoll = new Poll({ address: () => apiAddress("groups"), show: draw, tell });

byId("page").replaceChildren(notice("asking", "Asking the broker\u2026"));
furnish("topics", []);
keepFresh(topicPoll);
new ResizeObserver(([entry]) =>
  document.documentElement.style.setProperty("--bar-height", `${entry.target.offsetHeight}px`),
).observe(document.querySelector(".bar"));
topicPoll.now();
groupPoll.now();
const wanted = decodeURIComponent(window.location.hash.slice(1));
if (wanted) topicTable.open.add(wanted);
