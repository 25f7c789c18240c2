// The page of one hour of one pipeline.

import { airflowLink, empty, facts as listed, furnish, keepFresh, notice, sentence, tellProblems } from "./chrome.js";
import { Actions } from "./actions.js";
import { attemptsPanel, redrivesPanel } from "./attempts.js";
import { deadLettersPanel } from "./deadletters.js";
import { byId, h, replace } from "./dom.js";
import { equationPanel, rangesPanel } from "./equation.js";
import { hour, many, MISSING, moment } from "./format.js";
import { apiAddress, asked, pageAddress, windowAddress } from "./frame.js";
import { Poll } from "./live.js";
import { stateOf } from "./states.js";
import { waitingPanels } from "./waiting.js";

const pipeline = asked.get("pipeline");
const start = asked.get("start");

let isFrozen = true; // until the server has no window for the hour: then it is asked what the hour waits for

function address() {
  return apiAddress(`windows/${encodeURIComponent(pipeline)}/${encodeURIComponent(start)}${isFrozen ? "" : "/waiting"}`);
}

function step(label, at, title) {
  return at
    ? h("a", { class: "button", href: windowAddress(pipeline, at), title, rel: title }, label)
    : h("span", { class: "button", "aria-disabled": "true" }, label);
}

// Where the hour before or after begins; null after the hour that is open.
function beside(data, direction) {
  const [from, until] = [Date.parse(data.start), Date.parse(data.end)];
  const at = direction < 0 ? from - (until - from) : until;
  return at > Date.parse(data.now) ? null : new Date(at).toISOString().replace(".000Z", "Z");
}

function badge(data) {
  if (!data.cell) return null;
  const state = stateOf(data.cell.state);
  return h(
    "span",
    { class: "badge", id: "state", dataset: { state: state.name }, title: state.meaning },
    h("span", { class: `swatch s-${state.name}` }),
    state.label,
  );
}

function crumbs(data) {
  return h(
    "div",
    { class: "crumbs" },
    h("a", { href: pageAddress("ingestion") }, "Ingestion"),
    h("span", { class: "quiet" }, "/"),
    h("a", { href: pageAddress("pipeline", { pipeline: data.pipeline }), title: "the pipeline" }, data.pipeline),
    h("span", { class: "quiet" }, "/"),
    h("h1", {}, hour(data.start, data.end)),
    badge(data),
    h("span", { class: "space" }),
    h(
      "span",
      { class: "steps" },
      step("\u2190 Earlier", beside(data, -1), "prev"),
      step("Later \u2192", beside(data, 1), "next"),
    ),
  );
}

function facts(data) {
  const dags = (data.dag_ids ?? []).map((dag) => airflowLink(`dags/${encodeURIComponent(dag)}`, {}, dag));
  const rows = [
    [
      "Fingerprint",
      data.fingerprint
        ? h("code", { title: "of all records that were read; two loads of the same records have the same" }, data.fingerprint)
        : MISSING,
    ],
    ["Frozen", moment(data.frozen_at)],
    ["Loaded", moment(data.loaded_at)],
    ["Audited", moment(data.audit?.audited_at ?? data.audited_at)],
    ["Topic", data.topic ? h("a", { href: pageAddress("records", { topic: data.topic }) }, data.topic) : MISSING],
    ["Records", data.ranges?.length ? h("a", { href: recordsOf(data) }, "those of this hour") : MISSING],
    ["Dags", dags.length ? dags.flatMap((link, index) => (index ? [", ", link] : [link])) : MISSING],
  ];
  return h(
    "section",
    { class: "panel" },
    h("h2", {}, "About this hour"),
    listed(rows),
  );
}

// The page of records over exactly the offsets of this hour.
function recordsOf({ topic, ranges }) {
  const offsets = (name) => ranges.map((range) => `${range.partition}:${range[name]}`).join(",");
  return pageAddress("records", { topic, starting_offsets: offsets("start_offset"), ending_offsets: offsets("end_offset") });
}

function warnings(data) {
  const problems = data.audit?.problems ?? [];
  return [
    ...problems.map((text) => notice("bad", "The audit found a difference", text)),
    data.cell.lost ? notice("bad", `${many(data.cell.lost, "record")} lost`, `${sentence(data.cell.note)}.`) : null,
    data.head_unknown
      ? notice(
          "warn",
          "Records may be missing at its beginning",
          data.loss_accepted
            ? `The loss was accepted by ${data.loss_accepted.by} at ${data.loss_accepted.at}: ${data.loss_accepted.reason}.`
            : "Records were gone, or may have been, before they were read; how many it had is unknown.",
        )
      : null,
    ...(data.other_records ?? []).map((one) =>
      notice(
        "warn",
        "Its records were replaced by others",
        `Run ${one.run_id} read ${many(one.read_after, "record")} where ${many(one.read_before, "record")} had been loaded, ` +
          `and was allowed to take them (${one.at}).`,
      ),
    ),
  ];
}

const poll = new Poll({ address, show, tell });
const actions = new Actions(poll);

function show(data) {
  if (data.is_frozen) {
    isFrozen = true;
    poll.now();
    return;
  }
  actions.follow(data);
  document.title = `${data.pipeline} ${data.start}`;
  if (!isFrozen) {
    replace(byId("page"), crumbs(data), waitingPanels(data, actions));
    return;
  }
  replace(
    byId("page"),
    crumbs(data),
    warnings(data),
    h(
      "div",
      { class: "two" },
      h("div", {}, equationPanel(data), rangesPanel(data), deadLettersPanel(data), redrivesPanel(data)),
      h("div", { class: "side" }, actions.panel(data), attemptsPanel(data), facts(data)),
    ),
  );
}

// An hour that is not frozen yet is not an error: the page asks what it waits for. One that is not the pipeline's does not exist.
function tell(now) {
  if (isFrozen && !now.data && now.error?.status === 404) {
    isFrozen = false;
    now.now();
    return;
  }
  tellProblems(now);
  if (now.data || now.error?.status !== 404) return;
  replace(byId("notices"));
  replace(
    byId("page"),
    empty("There is no such hour", now.error.message, `logbus window ls --pipeline ${pipeline}`),
    h("p", {}, h("a", { href: pageAddress("ingestion") }, "All hours")),
  );
}

function begin() {
  furnish("window", [
    ["Esc", "close what is open"],
    ["?", "these keys"],
  ]);
  if (!pipeline || !start) {
    byId("page").replaceChildren(
      empty("No hour was asked for", "Choose one on the page of all hours."),
      h("a", { href: pageAddress("ingestion") }, "All hours"),
    );
    return;
  }
  keepFresh(poll);
  poll.now();
}

byId("page").replaceChildren(notice("asking", "Asking for the hour\u2026"));
begin();
