// What the page of an hour shows before the hour is frozen: whether it is still open or waits, what is known of it, what loads it.

import { airflowLink, facts, sentence } from "./chrome.js";
import { h } from "./dom.js";
import { expiry } from "./equation.js";
import { ago, moment, span } from "./format.js";
import { pageAddress } from "./frame.js";
import { copyable } from "./prose.js";

function told(data) {
  if (data.is_open) {
    const left = span((Date.parse(data.closes_at) - Date.parse(data.now)) / 1000);
    return ["This hour is still open", `Records may still come. It closes in ${left}; then it is frozen and loaded.`];
  }
  if (data.problem) return ["Whether it holds records is unknown", `${sentence(data.problem)}.`];
  if (!data.cell) return ["Nothing to load", "No record is in this hour, so nothing waits for it."];
  return [
    "No load has begun",
    `The hour closed ${ago(data.closes_at, data.now)}. The first load freezes its offsets; from then on every load reads the same records.`,
  ];
}

export function waitingPanels(data, actions) {
  const [title, text] = told(data);
  const dags = data.dag_ids.map((dag) => airflowLink(`dags/${encodeURIComponent(dag)}`, {}, dag));
  const note = !data.is_open && data.cell?.lost ? h("p", { class: "cause" }, `${sentence(data.cell.note)}.`) : null;
  const byHand = h("div", { class: "one" }, h("div", {}, copyable(data.command)), h("small", {}, "The same without Airflow, for all hours that wait."));
  return h(
    "div",
    { class: "two" },
    h(
      "div",
      {},
      h(
        "section",
        { class: "panel", "aria-labelledby": "waiting-title" },
        h("h2", { id: "waiting-title" }, title),
        note,
        h("p", {}, text),
        data.is_open ? null : expiry(data),
        h("p", {}, h("a", { href: pageAddress("pipeline", { pipeline: data.pipeline }) }, `How ${data.pipeline} stands`)),
      ),
    ),
    h(
      "div",
      { class: "side" },
      data.is_open || !data.cell ? null : actions.panel(data, byHand),
      h(
        "section",
        { class: "panel" },
        h("h2", {}, "About this hour"),
        facts([
          [data.is_open ? "Closes" : "Closed", moment(data.closes_at)],
          ["Topic", h("a", { href: pageAddress("records", { topic: data.topic, since: data.start }) }, data.topic)],
          ["Dags", dags.length ? dags.flatMap((link, place) => (place ? [", ", link] : [link])) : "none: loaded by hand"],
        ]),
      ),
    ),
  );
}
