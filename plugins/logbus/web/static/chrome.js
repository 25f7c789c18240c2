// What surrounds every page: the bar with links to the other pages, how fresh the data is, what is wrong with the sources it
// comes from, and the keys.

import { byId, h, replace } from "./dom.js";
import { span } from "./format.js";
import { airflowAddress, asked, follow, isFramed, pageAddress } from "./frame.js";
import { copyable, prose } from "./prose.js";
import { followTheme } from "./theme.js";

const PAGES = [
  ["ingestion", "Ingestion"],
  ["topics", "Topics and groups"],
  ["connection", "Connection"],
];
const TICK_MS = 1000;

export function airflowLink(href, attributes, ...children) {
  const address = airflowAddress(href);
  return h("a", { href: address, ...attributes, dataset: { airflow: "" } }, ...children);
}

function scope() {
  const dag = asked.get("dag_id");
  if (!dag) return null;
  const what = asked.get("run_id") && !asked.get("run_id").includes("{") ? `this run of ${dag}` : dag;
  return h("span", { class: "scope", title: "Only what this Dag loads" }, `Only ${what}`);
}

function bar(current, keys) {
  return h(
    "header",
    { class: "bar" },
    h(
      "nav",
      { "aria-label": "Pages" },
      PAGES.map(([page, label]) => h("a", { href: pageAddress(page), "aria-current": page === current ? "page" : null }, label)),
    ),
    scope(),
    h("span", { class: "space" }),
    h("span", { class: "fresh waiting", id: "fresh" }, "asking\u2026"),
    keys.length
      ? h(
          "button",
          {
            class: "button plain",
            type: "button",
            id: "keys-button",
            onclick: () => byId("keys").showModal(),
            "aria-haspopup": "dialog",
            title: "Keys (?)",
          },
          h("kbd", {}, "?"),
          h("span", { class: "seen-by-readers" }, "Keys"),
        )
      : null,
  );
}

function keysDialog(keys) {
  return h(
    "dialog",
    { id: "keys", "aria-labelledby": "keys-title" },
    h("h2", { id: "keys-title" }, "Keys"),
    h(
      "dl",
      {},
      keys.map(([key, meaning]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, meaning)]),
    ),
    h("form", { method: "dialog", class: "foot" }, h("button", { class: "button" }, "Close")),
  );
}

function isTyping(target) {
  return target.closest("input, select, textarea, dialog") !== null;
}

// Builds the page around <main>. `keys` are pairs of a key and what it does.
export function furnish(current, keys = []) {
  followTheme();
  document.body.prepend(bar(current, keys));
  if (keys.length) document.body.append(keysDialog(keys));
  takeKeys();
  document.addEventListener("keydown", (event) => {
    if (event.key === "?" && keys.length && !isTyping(event.target)) byId("keys").showModal();
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-airflow]");
    if (link) follow(event, link.href);
  });
}

// Inside Airflow's own page, keys reach us only with the focus: taken on arrival, unless the user is typing there.
function takeKeys() {
  if (isFramed() && !window.parent.document.activeElement?.matches("input, select, textarea")) window.focus();
}

export function freshness(poll) {
  const place = byId("fresh");
  const seconds = poll.answeredAt ? (Date.now() - poll.answeredAt) / 1000 : null;
  place.className = `fresh ${poll.error ? "stale" : seconds === null ? "waiting" : seconds < 1 ? "pulse" : ""}`;
  const age = seconds === null ? "" : seconds < 2 ? "updated just now" : `updated ${span(seconds)} ago`;
  place.textContent = poll.error ? (age ? `not answering, ${age}` : "not answering") : age || "asking\u2026";
}

export function keepFresh(poll) {
  window.setInterval(() => freshness(poll), TICK_MS);
}

export function notice(kind, title, text, command) {
  return h(
    "div",
    { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "status" },
    h(
      "div",
      {},
      h("strong", {}, title),
      text ? h("span", {}, prose(text)) : null,
      command ? h("div", {}, copyable(command)) : null,
    ),
  );
}

export function empty(title, text, command) {
  return h(
    "div",
    { class: "panel empty" },
    title ? h("h2", {}, title) : null,
    text ? h("p", {}, prose(text)) : null,
    command ? copyable(command) : null,
  );
}

// The error of a poll, with what was known before still on the page below it.
export function problem(poll) {
  if (!poll.error) return [];
  const again = `Asking again in ${span(poll.pause() / 1000)}.`;
  const title = poll.data ? "These figures are not up to date" : "Nothing to show yet";
  const signIn = poll.error.status === 401 ? airflowLink("auth/login", { class: "button" }, "Sign in") : null;
  return [
    h(
      "div",
      { class: "notice bad", role: "alert" },
      h(
        "div",
        {},
        h("strong", {}, title),
        `${ended(poll.error.message)} `,
        poll.error.status === 0 || poll.error.status >= 500 ? again : null,
        signIn ? h("div", {}, signIn) : null,
      ),
    ),
  ];
}

// A message of the server's as a sentence.
function ended(text) {
  return /[.!?]$/.test(text) ? sentence(text) : `${sentence(text)}.`;
}

// A message of the server's as a title.
export function sentence(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : "";
}

const PLACES = { warehouse: "The warehouse", broker: "The broker" };

// What an answer says about the sources of its figures.
export function places(data) {
  return Object.entries(PLACES).flatMap(([name, title]) => {
    const place = data?.[name];
    if (!place || place.state === "ok" || place.state === "empty") return [];
    return [notice("bad", sentence(place.message || `${title} does not answer`), place.advice)];
  });
}

export function tellProblems(poll) {
  if (poll.error && !poll.data) byId("page").querySelector(".notice.asking")?.remove();
  freshness(poll);
  replace(byId("notices"), problem(poll), poll.error ? [] : places(poll.data));
}

// Names and what they are, one below the other; `rows` are pairs.
export function facts(rows) {
  return h(
    "dl",
    { class: "facts" },
    rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}
