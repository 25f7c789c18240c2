// The page of one pipeline: its definition, its progress, its recent hours and attempts, its aggregates and streams.

import { STATES } from "./attempts.js";
import { airflowLink, empty, facts, furnish, keepFresh, notice, sentence, tellProblems } from "./chrome.js";
import { trend } from "./bars.js";
import { byId, h, replace } from "./dom.js";
import { ago, bytes, clock, day, many, MISSING, moment, runOf, share, short, span, unitOf, whole } from "./format.js";
import { apiAddress, asked, pageAddress, windowAddress } from "./frame.js";
import { Poll } from "./live.js";
import { prose } from "./prose.js";

const name = asked.get("pipeline");
const HOUR_SECONDS = 3600;

function crumbs() {
  return h(
    "div",
    { class: "crumbs" },
    h("a", { href: pageAddress("ingestion") }, "Ingestion"),
    h("span", { class: "quiet" }, "/"),
    h("h1", {}, name),
    h("span", { class: "space" }),
    h("a", { class: "button", href: pageAddress("ingestion", { pipeline: name }) }, "Its hours"),
  );
}

// How far it is, and what to do about it, in one line.
function standing({ lag, pipeline, broker, dag_ids: dags, paused_dag_ids: paused }) {
  if (lag.problem && broker.state !== "ok") return null; // the page says so above
  if (lag.problem) return notice("bad", "How far behind is unknown", sentence(lag.problem));
  const off = dags.length > 0 && dags.every((one) => paused.includes(one));
  const links = off ? paused.map((one) => airflowLink(`dags/${encodeURIComponent(one)}`, {}, `Switch on ${one}`)) : [];
  const pause = off ? ` ${paused.length > 1 ? "Its Dags are" : "Its Dag is"} paused, so nothing loads it. ` : "";
  if (!lag.hours_behind) return notice(off ? "warn" : "good", `Every closed ${unitOf([pipeline])} is in`, [pause, links].flat());
  const waiting = `${many(lag.records_behind, "record")}, the oldest for ${span(lag.age_seconds)}`;
  const kept = lag.expiry_problem ? `how long they are kept is unknown (${lag.expiry_problem})` : "nothing deletes them";
  const until = lag.seconds_until_expiry === null ? kept : `they are kept for ${span(lag.seconds_until_expiry)} more`;
  return h(
    "div",
    { class: `notice ${off ? "bad" : "warn"}`, role: "status" },
    h(
      "div",
      {},
      h("strong", {}, `${many(lag.hours_behind, unitOf([pipeline]))} not in yet`),
      `${waiting}; ${until}.${pause}`,
      links,
      h("div", {}, prose(`By hand: \`logbus load --pipeline ${name} --only-missing\``)),
    ),
  );
}

function trends({ hours }) {
  const count = hours.start.length;
  if (!count) return h("section", { class: "panel" }, h("h2", {}, "Its hours"), h("p", { class: "quiet" }, "None is loaded yet."));
  const part = (values) => values.map((value, place) => (hours.read[place] ? (value ?? 0) / hours.read[place] : null));
  const from = hours.start[0];
  return h(
    "section",
    { class: "panel" },
    h(
      "h2",
      {},
      "Its hours ",
      h("span", { class: "quiet" }, `the last ${whole(count)} that are loaded, since ${day(from)} ${clock(from)} UTC`),
    ),
    h(
      "div",
      { class: "trends" },
      trend("Records", hours.read, hours.start, short),
      trend("Late", part(hours.late), hours.start, share),
      trend("Dead letters", part(hours.dead_lettered), hours.start, share),
      trend("Load took", hours.seconds, hours.start, span),
    ),
  );
}

function deadLetters({ dead_letters: classes }) {
  if (!classes.length) return null;
  return h(
    "section",
    { class: "panel" },
    h("h2", {}, "Dead letters ", h("span", { class: "quiet" }, "of these hours, by kind")),
    table(
      ["Kind", "Records", "Hours", "Last in"],
      classes.map((one) => [
        h("b", {}, one.error_class),
        one.count,
        one.windows,
        h("a", { href: `${windowAddress(name, one.last)}#dead-letters` }, `${day(one.last)} ${clock(one.last)}`),
      ]),
    ),
  );
}

function table(heads, rows) {
  const style = (place) => (typeof rows[0]?.[place] === "number" ? "number" : null);
  return h(
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
          heads.map((head, place) => h("th", { scope: "col", class: style(place) }, head)),
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
              typeof cell === "number" ? h("td", { class: "number" }, whole(cell)) : h("td", {}, cell ?? MISSING),
            ),
          ),
        ),
      ),
    ),
  );
}

function attempts({ attempts: found, now }) {
  const row = (one) => [
    h("a", { href: windowAddress(name, one.start) }, `${day(one.start)} ${clock(one.start)}`),
    h("span", { class: one.state === "failed" ? "bad" : "" }, STATES[one.state] ?? one.state),
    h("span", { title: moment(one.began_at) }, `${day(one.began_at)} ${clock(one.began_at)}`),
    span((Date.parse(one.ended_at ?? now) - Date.parse(one.began_at)) / 1000),
    one.log_url
      ? airflowLink(one.log_url, { title: one.run_id }, runOf(one.run_id))
      : h("span", { title: one.run_id }, runOf(one.run_id)),
    one.error ? h("span", { class: "why" }, one.error.split("\n")[0]) : null,
  ];
  return h(
    "section",
    { class: "panel" },
    h("h2", {}, "Attempts ", found.length ? h("span", { class: "quiet" }, `the last ${whole(found.length)}`) : null),
    found.length
      ? table(["Hour", "State", "Began", "Took", "By", "Error"], found.map(row))
      : h("p", { class: "quiet" }, "No load has been tried yet."),
  );
}

const STREAM_STATES = { failed: "bad", silent: "bad", new: "quiet", stopped: "quiet" };

// What is counted as it arrives: how old that is, and what the proofs of its hours have found.
function streams({ streams: found, now }) {
  if (!found.length) return null;
  const row = (one) => [
    h("b", { title: one.words }, one.name),
    h("span", { class: STREAM_STATES[one.state] ?? "" }, one.state),
    one.lag_seconds === null ? null : span(one.lag_seconds),
    one.lag_records,
    h("span", { title: one.committed_at ? `epoch ${whole(one.epochs)}, ${moment(one.committed_at)}` : null }, ago(one.committed_at, now)),
    one.proven,
    one.behind,
    one.different ? h("span", { class: "bad" }, whole(one.different)) : 0,
    one.error ? h("span", { class: "why" }, one.error.split("\n")[0]) : null,
  ];
  const heads = ["Stream", "State", "Lag", "Records behind", "Last epoch", "Hours proven", "To prove", "Different", "Error"];
  return h(
    "section",
    { class: "panel" },
    h("h2", {}, "Streams ", h("span", { class: "quiet" }, "counted as it arrives, proven when the hour is loaded")),
    table(heads, found.map(row)),
    found
      .filter((one) => one.different)
      .map((one) => h("p", {}, prose(`What differed: \`logbus stream show ${one.name}\``))),
  );
}

function aggregates({ aggregates: found }) {
  if (!found.length) return null;
  const row = (one) => [
    h("b", { title: one.words }, one.name),
    h("span", { class: one.verdict === "wrong" || one.error ? "bad" : "" }, one.verdict),
    one.hours,
    one.wrong ? h("span", { class: "bad" }, whole(one.wrong)) : 0,
    one.behind,
    one.error ? h("span", { class: "why" }, one.error.split("\n")[0]) : null,
  ];
  return h(
    "section",
    { class: "panel" },
    h("h2", {}, "Aggregates ", h("span", { class: "quiet" }, "by the hours in which it happened")),
    table(["Aggregate", "State", "Hours", "Wrong", "Windows behind", "Error"], found.map(row)),
  );
}

function waiting(lag) {
  if (lag.problem) return "not known";
  if (!lag.records_behind) return "nothing";
  const size = lag.bytes_behind ? `, ${lag.bytes_are_estimated ? "about " : ""}${bytes(lag.bytes_behind)}` : "";
  return `${many(lag.records_behind, "record")}${size}`;
}

function windowWords(pipeline) {
  if (pipeline.interval_seconds === HOUR_SECONDS) return "an hour";
  return pipeline.timezone === "UTC" ? span(pipeline.interval_seconds) : `a day in ${pipeline.timezone}`;
}

function about(data) {
  const { pipeline, dag_ids: dags } = data;
  const links = dags.map((dag) => airflowLink(`dags/${encodeURIComponent(dag)}`, {}, dag));
  const rows = [
    ["Topic", h("a", { href: pageAddress("records", { topic: pipeline.topic }), title: "look at its records" }, pipeline.topic)],
    ["Table", `${pipeline.table}${pipeline.sink === "postgres" ? "" : ` (${pipeline.sink})`}`],
    ["Parser", h("code", {}, pipeline.parse)],
    ["Window", windowWords(pipeline)],
    ["Closes", `${span(pipeline.lateness_seconds)} after its end`],
    ["Begins", pipeline.starts_at ? moment(pipeline.starts_at) : "at the topic's first record"],
    ["Isolation", pipeline.isolation_level],
    ["Dags", links.length ? links.flatMap((link, place) => (place ? [", ", link] : [link])) : "none: loaded by hand"],
    ["Waiting", waiting(data.lag)],
  ];
  const settings = Object.entries(pipeline.settings).map(([key, value]) => [
    key,
    h("code", {}, typeof value === "string" ? value : JSON.stringify(value)),
  ]);
  const columns = Object.entries(pipeline.columns);
  return h(
    "section",
    { class: "panel" },
    h("h2", {}, "What it is"),
    facts([...rows, ...settings]),
    columns.length
      ? h(
          "details",
          {},
          h("summary", {}, many(columns.length, "column")),
          facts(columns.map(([key, kind]) => [key, h("code", {}, kind)])),
        )
      : null,
  );
}

function show(data) {
  document.title = `${name} \u00b7 logbus`;
  const isOpen = byId("page").querySelector("details")?.open;
  const changed = replace(
    byId("page"),
    crumbs(),
    standing(data),
    h(
      "div",
      { class: "two" },
      h("div", {}, trends(data), streams(data), aggregates(data), deadLetters(data), attempts(data)),
      h("div", { class: "side" }, about(data)),
    ),
  );
  if (changed && isOpen) byId("page").querySelector("details")?.setAttribute("open", "");
}

function tell(now) {
  tellProblems(now);
  if (now.data || now.error?.status !== 404) return;
  replace(byId("notices"));
  replace(
    byId("page"),
    empty("There is no such pipeline", now.error.message, "logbus pipeline ls"),
    h("p", {}, h("a", { href: pageAddress("ingestion") }, "All pipelines")),
  );
}

const poll = new Poll({ address: () => apiAddress(`pipelines/${encodeURIComponent(name)}`), show, tell });

byId("page").replaceChildren(notice("asking", "Asking for the pipeline\u2026"));
furnish("pipeline", []);
if (name) {
  keepFresh(poll);
  poll.now();
} else {
  byId("page").replaceChildren(
    empty("No pipeline was asked for", "Choose one on the page of all hours."),
    h("a", { href: pageAddress("ingestion") }, "All pipelines"),
  );
}
