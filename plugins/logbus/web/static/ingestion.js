// The page "Ingestion": asks for the overview, keeps the wall up to date, opens an hour's page.

import { byId, h, replace } from "./dom.js";
import { empty, furnish, keepFresh, notice, sentence, tellProblems } from "./chrome.js";
import { Choices } from "./choices.js";
import { Chosen } from "./chosen.js";
import { apiAddress, asked, windowAddress } from "./frame.js";
import { focusOn, walk } from "./gridkeys.js";
import { headline, isOff, isOnlyDue } from "./headline.js";
import { HeatMap } from "./heatmap.js";
import { Poll } from "./live.js";
import { copyable, prose } from "./prose.js";
import { attachTooltip } from "./tooltip.js";
import { days, head, legend, search, spans } from "./tools.js";

const KEYS = [
  ["Tab", "into the hours"],
  ["\u2190 \u2192 \u2191 \u2193", "from hour to hour, from pipeline to pipeline; left of the first hour is its name, which leads to its page"],
  ["PgUp PgDn", "a day back, a day on"],
  ["Home End", "first and last hour; with Ctrl, of all pipelines"],
  ["Enter", "open the hour"],
  ["Space", "choose the hour, to load several together; Shift and an arrow: up to there. With the mouse: Ctrl-click or Shift-click"],
  ["/", "find a pipeline"],
  ["Esc", "close what is open"],
  ["?", "these keys"],
];

// What an empty platform shows: the README has the same.
const FIRST_DAG = `from logbus.pipelines import hourly_ingest

# Airflow reads files in which the words "dag" and "airflow" occur.
dag = hourly_ingest(pipeline="access_log", topic="access_log", table="access_log", parse="combined")`;
const FIRST_COMMANDS = [
  "logbus ship access.log --topic access_log",
  "logbus pipeline register access_log --topic access_log --table access_log --parse combined",
  "logbus load --pipeline access_log",
];

const choices = new Choices();
const map = new HeatMap();
const places = {
  headline: h("section", { class: "panel headline", "aria-label": "In short" }),
  legend: h("div", {}),
  spans: h("div", {}),
  noMatch: h(
    "div",
    { class: "no-match hidden", role: "status" },
    "No pipeline matches. Clear the search or the legend to see all of them.",
  ),
};

const only = (name) => (asked.get(name)?.includes("{") ? null : asked.get(name));

function address() {
  const wanted = { hours: choices.shownHours };
  if (choices.until) wanted.until = choices.until;
  for (const name of ["dag_id", "run_id", "since", "until"])
    if (only(name) && !(name in wanted)) wanted[name] = only(name);
  return apiAddress("overview", wanted);
}

function build() {
  const find = search(choices, (words) => {
    choices.search = words;
    redraw();
  });
  const tools = h("div", { class: "tools" }, places.legend, h("span", { class: "space" }), chosen.toggle(), find, places.spans);
  byId("page").replaceChildren(places.headline, tools, map.element, places.noMatch);
}

function redraw() {
  const { pipelines, span, now, paused_dag_ids: paused } = poll.data;
  for (const one of pipelines) one.dag_ids = poll.data.dag_ids[one.name] ?? [];
  for (const one of pipelines) Object.assign(one, { is_due: isOnlyDue(one, now, paused), is_off: isOff(one, paused) });
  const shown = choices.chosen(pipelines);
  showHeadline(headline(pipelines, span, paused));
  replace(places.legend, legend(pipelines, choices, redraw));
  replace(places.spans, spans(choices, chooseHours), days(choices, poll.data, chooseDay));
  replace(map.head, head(span, now, choices, sortBy));
  map.show(shown, span, now);
  chosen.show();
  if (choices.states.size) map.element.dataset.show = [...choices.states].join(" ");
  else delete map.element.dataset.show;
  places.noMatch.classList.toggle("hidden", shown.length > 0);
}

// An opened list stays open when the figures above it change.
function showHeadline(...made) {
  const isOpen = places.headline.querySelector("details")?.open;
  if (replace(places.headline, ...made) && isOpen) places.headline.querySelector("details")?.setAttribute("open", "");
}

// `until` is where the map ends, as an instant; null: now.
function chooseDay(until) {
  choices.until = until;
  poll.now();
}

function chooseHours(hours) {
  choices.hours = hours;
  choices.keep();
  poll.now();
}

function sortBy(order) {
  choices.sortBy(order);
  redraw();
}

// What to do where there is nothing to see yet.
function nothing(data) {
  const { state, message } = data.warehouse ?? {};
  if (state === "down")
    return empty(
      "Hours are not known",
      "They are in the warehouse's ledger, which does not answer. Topics and groups are on their own page.",
    );
  if (only("dag_id"))
    return empty(
      "This Dag loads nothing yet",
      "A Dag whose tasks freeze, load or audit windows shows its pipelines here after its first run.",
    );
  return h(
    "div",
    { class: "panel empty" },
    h("h1", {}, "No pipeline yet"),
    message ? h("p", {}, prose(`${sentence(message)}.`)) : null,
    h("p", {}, "A pipeline loads a topic into a table, hour by hour. This file in Airflow's dags folder makes one; then switch its Dag on:"),
    h("pre", { class: "command", tabindex: "0", "aria-label": "dags/access_log.py" }, FIRST_DAG),
    h("p", {}, "Or by hand, in a terminal:"),
    h("div", { class: "commands" }, FIRST_COMMANDS.map(copyable)),
  );
}

function show(data) {
  if (!data.pipelines.length) {
    byId("page").replaceChildren(nothing(data));
    return;
  }
  if (!map.element.isConnected) build();
  redraw();
}

const poll = new Poll({ address, show, tell: tellProblems });
const chosen = new Chosen(map, poll);

function start() {
  furnish("ingestion", KEYS);
  walk(map, {
    open: (cell) => window.location.assign(windowAddress(cell.pipeline.name, cell.cell.start)),
    choose: (cell, upTo) => chosen.choose(cell, upTo),
    isChoosing: () => chosen.isOn,
  });
  map.element.addEventListener(
    "focusin",
    (event) => event.target.classList.contains("cell") && event.target.tabIndex < 0 && focusOn(map, event.target),
  );
  map.element.addEventListener("click", (event) => {
    const name = event.target.closest("[data-load]")?.dataset.load;
    if (name) chosen.chooseWaiting(name);
  });
  attachTooltip(map);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) chosen.clear();
    if (event.key !== "/" || event.target.closest("input, dialog")) return;
    event.preventDefault();
    byId("search")?.focus();
  });
  new ResizeObserver(([entry]) =>
    document.documentElement.style.setProperty("--bar-height", `${entry.target.offsetHeight}px`),
  ).observe(document.querySelector(".bar"));
  let hours = choices.shownHours;
  window.addEventListener("resize", () => {
    if (hours === choices.shownHours) return;
    hours = choices.shownHours;
    poll.now();
  });
  keepFresh(poll);
  poll.now();
}

byId("page").replaceChildren(notice("asking", "Asking for the hours\u2026"));
start();
