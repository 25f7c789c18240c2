// A requested action and its progress: followed in the window's own data, starting from its state before the click.

import { h } from "./dom.js";

const PATIENCE_MS = 30 * 60_000; // then the page stops refreshing fast; Airflow continues all the same

const newest = (data) => data.attempts?.at(-1) ?? null;

export class Expectation {
  constructor(name, data, answer) {
    Object.assign(this, { name, answer, since: Date.now() });
    this.attempt = newest(data)?.number ?? 0;
    this.redrives = data.redrives?.length ?? 0;
  }

  // The steps with their states: each [text, "done" | "doing" | "wrong" | ""].
  steps(data) {
    const raw = this.name === "redrive" ? this.redrive(data) : this.rerun(data);
    let isReached = true;
    return raw.map(([text, state]) => {
      const shown = state || (isReached ? "doing" : "");
      isReached = isReached && state === "done";
      return [text, shown];
    });
  }

  rerun(data) {
    const attempt = newest(data);
    const began = attempt !== null && attempt.number > this.attempt;
    const failed = began && attempt.state === "failed";
    const loaded = (data.loaded_attempt ?? 0) > this.attempt;
    return [
      ["Airflow has the run", "done"],
      [
        began ? `Attempt ${attempt.number} reads the same offsets` : "Waiting for an attempt",
        began ? (failed ? "wrong" : "done") : "",
      ],
      [failed ? "The attempt failed; what was loaded before is untouched" : "Loaded", failed ? "wrong" : loaded ? "done" : ""],
      ["Audited", loaded && data.audited_at ? "done" : ""],
    ];
  }

  redrive(data) {
    const redriven = (data.redrives?.length ?? 0) > this.redrives;
    const last = redriven ? data.redrives.at(-1) : null;
    return [
      ["Airflow has the run", "done"],
      [
        last ? `${last.loaded} of ${last.tried} parse now and are rows` : "Parsing the dead letters again",
        redriven ? "done" : "",
      ],
      ["Audited", redriven && data.audited_at ? "done" : ""],
    ];
  }

  isOver(data) {
    const steps = this.steps(data);
    return (
      steps.every(([, state]) => state === "done") ||
      steps.some(([, state]) => state === "wrong") ||
      Date.now() - this.since > PATIENCE_MS
    );
  }

  show(data) {
    return h(
      "ol",
      { class: "progress", "aria-label": "Progress", role: "status" },
      this.steps(data).map(([text, state]) => h("li", { class: state }, text)),
    );
  }
}
