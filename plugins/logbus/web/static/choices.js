// What the viewer chose: how many hours, which states, which names, in which order. Kept in this browser only.

import { asked } from "./frame.js";

const KEY = "logbus.ingestion";
const PHONE_PIXELS = 700;
const WIDE_PIXELS = 1700;
export const SPANS = [
  [24, "24 hours"],
  [72, "3 days"],
  [168, "7 days"],
];
export const ORDERS = {
  trouble: { descending: true, of: (one) => troubleOf(one) },
  name: { descending: false, of: (one) => one.name },
  behind: { descending: true, of: (one) => one.lag?.hours_behind ?? -1 },
  due: { descending: true, of: (one) => one.lag?.age_seconds ?? -1 },
  rate: { descending: true, of: (one) => one.throughput?.produced_per_second ?? -1 },
};

const WEIGHTS = { lost: 1e9, expiring: 1e8, failed: 1e6 };
const HEAVY_WEIGHT = 1e5;
export const HEAVY_SHARE = 0.1; // of an hour's records: more dead letters than that are a wrong parser, not an odd line

// What needs attention comes first: lost, then expiring, then failed, then hours of dead letters, then the one furthest behind.
export function troubleOf(pipeline) {
  const states = Object.entries(WEIGHTS).map(([name, weight]) => (pipeline.states?.[name] ? weight : 0));
  return (
    Math.max(...states, pipeline.lag?.problem ? 1e7 : 0, hasHeavyHour(pipeline) ? HEAVY_WEIGHT : 0) + (pipeline.is_due ? 0 : (pipeline.lag?.hours_behind ?? 0)) + (pipeline.dead_letters ? 0.5 : 0)
  );
}

function hasHeavyHour(pipeline) {
  const dead = Object.entries(pipeline.cells?.dead_lettered ?? {});
  return dead.some(([place, count]) => count > HEAVY_SHARE * (pipeline.cells.records[place] ?? 0));
}

function hoursThatFit() {
  if (window.innerWidth <= PHONE_PIXELS) return 24;
  return window.innerWidth >= WIDE_PIXELS ? 168 : 72;
}

export class Choices {
  constructor() {
    this.states = new Set();
    this.search = asked.get("pipeline") ?? "";
    this.order = "trouble";
    this.reversed = false;
    this.hours = null;
    this.until = null; // where the map ends; null: now, or where the records do
    try {
      const stored = JSON.parse(window.localStorage.getItem(KEY) ?? "{}");
      if (SPANS.some(([hours]) => hours === stored.hours)) this.hours = stored.hours;
      if (stored.order in ORDERS) this.order = stored.order;
    } catch {
      // nothing usable is stored: the defaults will do
    }
    if (SPANS.some(([hours]) => String(hours) === asked.get("hours"))) this.hours = Number(asked.get("hours"));
  }

  get shownHours() {
    return window.innerWidth <= PHONE_PIXELS ? 24 : (this.hours ?? hoursThatFit());
  }

  keep() {
    try {
      window.localStorage.setItem(KEY, JSON.stringify({ hours: this.hours, order: this.order }));
    } catch {
      // a browser that stores nothing forgets the choice with the page
    }
  }

  sortBy(order) {
    this.reversed = this.order === order ? !this.reversed : false;
    this.order = order;
    this.keep();
  }

  direction(order) {
    if (order !== this.order) return null;
    return ORDERS[order].descending !== this.reversed ? "descending" : "ascending";
  }

  // The pipelines that are chosen, in their order.
  chosen(pipelines) {
    const words = this.search.toLowerCase();
    const { of, descending } = ORDERS[this.order];
    const sign = descending !== this.reversed ? -1 : 1;
    const compare = (one, other) => (of(one) < of(other) ? -1 : of(one) > of(other) ? 1 : 0);
    return pipelines
      .filter((one) =>
        [one.name, one.topic, one.table, ...(one.dag_ids ?? [])].some((text) => text?.toLowerCase().includes(words)),
      )
      .filter((one) => !this.states.size || [...this.states].some((state) => one.states?.[state]))
      .sort((one, other) => sign * compare(one, other) || one.name.localeCompare(other.name));
  }
}
