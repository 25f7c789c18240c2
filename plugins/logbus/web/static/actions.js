// What can be done about an hour. Nothing happens before the dialog is confirmed; an action that is not allowed says why.

import { airflowLink, notice } from "./chrome.js";
import { byId, h } from "./dom.js";
import { many, whole } from "./format.js";
import { actionAddress } from "./frame.js";
import { ask, post } from "./live.js";
import { Expectation } from "./progress.js";
import { copyable, prose } from "./prose.js";

const LABELS = { load: "Load this hour", rerun: "Load this hour again", redrive: "Redrive its dead letters", replay_plan: "What would a replay do?" };
const MEANINGS = {
  load: "Asks Airflow for a run of this hour, which freezes its offsets and loads them.",
  rerun: "Reads the same offsets again and replaces the hour's rows in one transaction.",
  redrive: "Parses the dead letters again, with the parser as it is now.",
  replay_plan: "Changes nothing: shows records, rows that would be replaced, what is still retained.",
};

export class Actions {
  // `poll` runs more often while a requested run is under way.
  constructor(poll) {
    // The last message is rebuilt for each drawing: an element can be in one place only.
    Object.assign(this, { poll, expected: null, said: () => null });
    this.dialog = h("dialog", { id: "confirm", "aria-labelledby": "confirm-title" });
    document.body.append(this.dialog);
  }

  panel(data, more = null) {
    return h(
      "section",
      { class: "panel", "aria-label": "What can be done" },
      h("h2", {}, "What can be done"),
      h(
        "div",
        { class: "actions" },
        (data.actions ?? []).map((action) => this.one(action)),
        more,
      ),
      h("div", { id: "said" }, this.said(), this.expected?.show(data)),
    );
  }

  one(action) {
    const label = LABELS[action.name] ?? action.label;
    const isBusy = this.expected !== null && action.method === "POST";
    const reason = isBusy ? "A requested run is under way." : action.allowed ? (MEANINGS[action.name] ?? "") : action.why_not;
    return h(
      "div",
      { class: "one" },
      h(
        "button",
        {
          class: "button",
          type: "button",
          disabled: !action.allowed || isBusy,
          dataset: { action: action.name, key: action.name },
          "aria-describedby": `why-${action.name}`,
          onclick: () => this.start(action, label),
        },
        label,
      ),
      h("small", { id: `why-${action.name}` }, prose(reason)),
    );
  }

  start(action, label) {
    if (action.method === "GET") return this.look(action, label);
    const refuse = () => this.dialog.close();
    this.dialog.replaceChildren(
      h("h2", { id: "confirm-title" }, `${label}?`),
      h("p", {}, action.confirm || MEANINGS[action.name] || ""),
      h(
        "div",
        { class: "foot" },
        h("button", { class: "button", type: "button", onclick: refuse }, "Cancel"),
        h("button", { class: "button main", type: "button", id: "confirmed", onclick: () => this.act(action) }, label),
      ),
    );
    this.dialog.showModal();
  }

  async act(action) {
    byId("confirmed").disabled = true;
    const before = this.poll.data;
    try {
      const answer = await post(actionAddress(action.href));
      const run = () => (answer.url ? h("div", {}, airflowLink(answer.url, {}, "The run in Airflow")) : null);
      this.said = () => [notice("good", answer.message || "Requested."), run()];
      this.expected = new Expectation(action.name, before, answer);
      this.poll.hurry(2);
    } catch (error) {
      this.said = () => notice("bad", "Nothing was done", error.message);
    }
    this.dialog.close();
    this.poll.show(this.poll.data);
  }

  async look(action, label) {
    this.dialog.replaceChildren(h("h2", { id: "confirm-title" }, label), h("p", { class: "quiet" }, "Asking\u2026"));
    this.dialog.showModal();
    const close = h(
      "div",
      { class: "foot" },
      h("button", { class: "button", type: "button", onclick: () => this.dialog.close() }, "Close"),
    );
    const title = h("h2", { id: "confirm-title" }, label);
    try {
      this.dialog.replaceChildren(title, planText(await ask(actionAddress(action.href))), close);
    } catch (error) {
      this.dialog.replaceChildren(title, notice("bad", "The plan could not be made", error.message), close);
    }
  }

  // Called with each answer: detects when the requested run is over.
  follow(data) {
    if (!this.expected?.isOver(data)) return;
    const isWell = this.expected.steps(data).every(([, state]) => state === "done");
    const ended = this.expected;
    this.said = () => [
      notice(isWell ? "good" : "bad", isWell ? "Done" : "It failed", isWell ? null : "The attempt below says why."),
      ended.show(data),
    ];
    this.expected = null;
    this.poll.hurry(0);
  }
}

function planText(answer) {
  const plan = answer.plan ?? answer;
  const facts = [
    ["windows", plan.windows?.length],
    ["records to read", plan.records],
    ["rows to replace", plan.rows_replaced],
    ["windows that retention has cut", plan.lost_windows],
  ];
  const known = facts.filter(([, value]) => typeof value === "number");
  const command = answer.command ?? plan.command;
  return h(
    "div",
    { class: "plan" },
    answer.message ? h("p", {}, answer.message) : null,
    h(
      "dl",
      {},
      known.map(([name, value]) => [h("dt", { class: "number" }, whole(value)), h("dd", {}, name)]),
    ),
    (plan.notes ?? []).map((note) => h("p", { class: "quiet" }, note)),
    command ? copyable(command) : null,
    known.length || answer.message ? null : h("p", {}, many(0, "window")),
  );
}
