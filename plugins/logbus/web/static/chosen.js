// Hours chosen on the map to be loaded together: a run of Airflow for each, requested one after the other with the user's own rights.
// What is refused stays chosen, with the reason.

import { notice } from "./chrome.js";
import { h, replace } from "./dom.js";
import { many, unitOf, whole } from "./format.js";
import { apiAddress } from "./frame.js";
import { post } from "./live.js";
import { prose } from "./prose.js";

const CHOSEN_MAX = 48; // two days of a pipeline. Each is a run with a Spark application of its own; a replay loads many in one
const TOO_MANY = `Each is a run of its own: choose ${CHOSEN_MAX} at most. \`logbus replay run --help\` loads any number in one.`;
const REASONS_MAX = 3;
const HURRIED_SECONDS = 3;
const HURRIED_MS = 180_000; // how long the map refreshes this often after a request
const WAITING = ["closed", "expiring", "failed"];
const LOADED = ["loaded", "audited", "dead_letters"];

const keyOf = (element) => `${element.pipeline.name} ${element.cell.start}`;

export class Chosen {
  constructor(map, poll) {
    Object.assign(this, { map, poll, isOn: false, anchor: null, marked: [] });
    // The last message is rebuilt for each drawing: an element can be in one place only.
    this.said = () => [];
    this.hours = new Map(); // by pipeline and start
    this.bar = h("section", { class: "chosen hidden", "aria-label": "Chosen hours" });
    this.dialog = h("dialog", { id: "load", "aria-labelledby": "load-title" });
    document.body.append(this.bar, this.dialog);
  }

  // Whether a click chooses instead of opening the hour: for devices without Shift and Ctrl.
  toggle() {
    return h(
      "button",
      {
        type: "button",
        class: "button",
        "aria-pressed": String(this.isOn),
        title: "Click hours to choose them; without this: Ctrl-click, Shift-click, or Space",
        dataset: { key: "choose" },
        onclick: (event) => {
          this.isOn = !this.isOn;
          event.currentTarget.setAttribute("aria-pressed", String(this.isOn));
        },
      },
      "Choose hours",
    );
  }

  // `upTo`: with all hours of the same pipeline between this one and the one chosen before.
  choose(element, upTo) {
    const row = upTo && this.anchor?.name === element.pipeline.name ? this.map.rows.find((one) => one.cells.includes(element)) : null;
    const from = row?.cells.findIndex((one) => one.cell.start === this.anchor.start) ?? -1;
    if (from >= 0) {
      const to = row.cells.indexOf(element);
      for (const one of row.cells.slice(Math.min(from, to), Math.max(from, to) + 1)) this.add(one);
    } else if (!this.hours.delete(keyOf(element))) this.add(element);
    this.anchor = { name: element.pipeline.name, start: element.cell.start };
    this.said = () => [];
    this.show();
  }

  // All hours of a pipeline that wait, as far as the map shows them.
  chooseWaiting(name) {
    const row = this.map.rows.find((one) => one.pipeline.name === name);
    for (const cell of row?.cells ?? []) if (WAITING.includes(cell.cell.state)) this.add(cell);
    this.said = () => [];
    this.show();
    this.bar.querySelector('[data-key="load"]')?.focus();
  }

  // An hour that is still open cannot be loaded.
  add(element) {
    if (element.cell.state !== "open") this.hours.set(keyOf(element), { pipeline: element.pipeline.name, ...element.cell });
  }

  clear() {
    this.hours.clear();
    Object.assign(this, { anchor: null, said: () => [] });
    this.show();
  }

  // Called after each drawing of the map, too: rows may have been rebuilt.
  show() {
    for (const element of this.marked) element.removeAttribute("aria-selected");
    const isChosen = (element) => this.hours.has(keyOf(element));
    this.marked = this.hours.size ? this.map.rows.flatMap((row) => row.cells.filter(isChosen)) : [];
    for (const element of this.marked) element.setAttribute("aria-selected", "true");
    const count = this.hours.size;
    const said = this.said();
    this.bar.classList.toggle("hidden", !count && !said.length);
    replace(this.bar, said, count ? this.line(count) : h("div", { class: "line" }, this.button("Close", () => this.clear())));
  }

  line(count) {
    const isTooMany = count > CHOSEN_MAX;
    return h(
      "div",
      { class: "line" },
      h("span", { role: "status" }, h("b", {}, many(count, this.unit)), ` of ${this.byPipeline().map(([name]) => name).join(", ")}`),
      h("small", {}, isTooMany ? prose(TOO_MANY) : null),
      this.button("Clear", () => this.clear()),
      h(
        "button",
        { type: "button", class: "button main", disabled: isTooMany, dataset: { key: "load" }, onclick: () => this.confirm() },
        `Load ${many(count, this.unit)}`,
      ),
    );
  }

  button(label, onclick) {
    return h("button", { type: "button", class: "button", dataset: { key: label }, onclick }, label);
  }

  get unit() {
    return unitOf(this.map.rows.map((row) => row.pipeline));
  }

  byPipeline() {
    const found = new Map();
    for (const one of this.hours.values()) found.set(one.pipeline, [...(found.get(one.pipeline) ?? []), one]);
    return [...found];
  }

  confirm() {
    const label = `Load ${many(this.hours.size, this.unit)}`;
    const lines = this.byPipeline().map(([name, hours]) => {
      const loaded = hours.filter((one) => LOADED.includes(one.state)).length;
      const again = loaded ? `; the rows of ${whole(loaded)} are replaced, from the same records` : "";
      return h("li", {}, h("b", {}, name), `: ${many(hours.length, this.unit)}${again}`);
    });
    const go = h("button", { class: "button main", type: "button", onclick: () => this.load(go) }, label);
    this.dialog.replaceChildren(
      h("h2", { id: "load-title" }, `${label}?`),
      h("p", {}, "Each hour's run in Airflow starts over, or one is requested if there was none."),
      h("ul", {}, lines),
      h("div", { class: "foot" }, this.button("Cancel", () => this.dialog.close()), go),
    );
    this.dialog.showModal();
  }

  async load(go) {
    go.disabled = true;
    const refused = new Map(); // by reason how many hours
    const all = [...this.hours];
    for (const [index, [key, one]] of all.entries()) {
      go.textContent = `Requesting: ${index + 1} of ${all.length}`;
      try {
        await post(apiAddress(`windows/${encodeURIComponent(one.pipeline)}/${one.start}/rerun`));
        this.hours.delete(key);
      } catch (error) {
        refused.set(error.message, (refused.get(error.message) ?? 0) + 1);
      }
    }
    this.dialog.close();
    const asked = all.length - this.hours.size;
    this.said = () => outcome(asked, refused, this.unit);
    this.anchor = null;
    this.poll.hurry(HURRIED_SECONDS);
    window.clearTimeout(this.calm);
    this.calm = window.setTimeout(() => this.poll.hurry(0), HURRIED_MS);
    this.show();
  }
}

function outcome(asked, refused, unit) {
  const bad = [...refused]
    .slice(0, REASONS_MAX)
    .map(([reason, count]) => notice("bad", `${many(count, unit)} not requested`, reason));
  if (refused.size > REASONS_MAX) bad.push(notice("bad", `and ${many(refused.size - REASONS_MAX, unit)} more, for reasons like these`));
  return asked ? [notice("good", `${many(asked, "run")} requested`, "The map shows how far they are."), ...bad] : bad;
}
