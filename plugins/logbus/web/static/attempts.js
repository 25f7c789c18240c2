// The attempts to load the hour: by whom, when, and how they went; with a link to each task's log in Airflow.

import { airflowLink } from "./chrome.js";
import { h } from "./dom.js";
import { ago, many, moment, runOf, span, whole } from "./format.js";

export const STATES = { committed: "committed", failed: "failed", superseded: "taken over", running: "running" };

function took(attempt, now) {
  const end = attempt.ended_at ?? now;
  return span((Date.parse(end) - Date.parse(attempt.began_at)) / 1000);
}

function story(attempt, now) {
  if (attempt.state === "running") return `for ${took(attempt, now)}, last heartbeat ${ago(attempt.heartbeat_at, now)}`;
  return `${moment(attempt.began_at)}, took ${took(attempt, now)}`;
}

function origin(attempt) {
  const dag = attempt.dag_id ? `${attempt.dag_id} \u00b7 ${attempt.task_id ?? ""}` : null;
  const tries = attempt.try_number > 1 ? `try ${attempt.try_number}` : null;
  return [dag, runOf(attempt.run_id), tries].filter(Boolean).join(" \u00b7 ");
}

// The attempt's error, or where it is shown already: `after` is the attempt that is listed above.
function report(attempt, after) {
  if (!attempt.error) return null;
  if (attempt.error === after?.error) return h("div", { class: "quiet" }, `the same error as in attempt ${after.number}`);
  return h("pre", { tabindex: "0", "aria-label": "error" }, attempt.error);
}

function one(attempt, data, after) {
  const isCurrent = attempt.number === data.loaded_attempt;
  const read = attempt.counts ? `${many(attempt.counts.read, "record")} read, ${whole(attempt.counts.loaded)} loaded` : null;
  return h(
    "li",
    { class: attempt.state },
    h(
      "div",
      { class: "line" },
      h("b", {}, `Attempt ${attempt.number}`),
      h("span", {}, STATES[attempt.state] ?? attempt.state),
      isCurrent ? h("span", { class: "current" }, "this is what the table holds") : null,
    ),
    h("div", { class: "quiet" }, story(attempt, data.now)),
    h("div", { class: "quiet", title: attempt.run_id }, origin(attempt), read ? ` \u00b7 ${read}` : ""),
    attempt.log_url ? h("div", {}, airflowLink(attempt.log_url, {}, "Task log in Airflow")) : null,
    report(attempt, after),
  );
}

export function attemptsPanel(data) {
  const attempts = [...(data.attempts ?? [])].reverse();
  return h(
    "section",
    { class: "panel", "aria-label": "Attempts" },
    h("h2", {}, "Attempts"),
    attempts.length
      ? h(
          "ol",
          { class: "attempts", reversed: true },
          attempts.map((attempt, place) => one(attempt, data, attempts[place - 1])),
        )
      : h("p", { class: "quiet" }, "No attempt at this hour yet."),
  );
}

export function redrivesPanel(data) {
  if (!data.redrives?.length) return null;
  const row = (redrive) =>
    h(
      "tr",
      {},
      h("td", { class: "nowrap" }, moment(redrive.redriven_at)),
      h("td", { class: "number" }, whole(redrive.tried)),
      h("td", { class: "number" }, whole(redrive.loaded)),
      h("td", { class: "number" }, whole(redrive.dead_lettered)),
      h("td", { title: redrive.run_id }, runOf(redrive.run_id)),
    );
  return h(
    "section",
    { class: "panel" },
    h("h2", {}, "Redrives ", h("span", { class: "quiet" }, "dead letters that were parsed again")),
    h(
      "div",
      { class: "scroll", role: "group", "aria-label": "Redrives", tabindex: "0" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["when", "tried", "now loaded", "still dead", "run"].map((name, index) =>
              h("th", { scope: "col", class: index > 0 && index < 4 ? "number" : "" }, name),
            ),
          ),
        ),
        h("tbody", {}, data.redrives.map(row)),
      ),
    ),
  );
}
