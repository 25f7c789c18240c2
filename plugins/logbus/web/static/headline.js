// The first line of the wall: is every hour in? Sums over what the overview says of each pipeline; what is not known stays unknown.

import { h } from "./dom.js";
import { bytes, many, MISSING, rate, short, span, unitOf, whole } from "./format.js";
import { airflowLink } from "./chrome.js";
import { copyable, prose } from "./prose.js";
import { known, sum } from "./sums.js";

const SOON_SECONDS = 86_400;
// The schedule's run of an hour begins when the hour is closed, and takes a minute or a few: until then nothing is wrong.
const DUE_SECONDS = 1_200;
const LISTED_MAX = 8;

// Whether all that a pipeline waits for is the hour that has only just closed, with a Dag that will load it. It closes when the
// lateness that the pipeline allows is over.
export function isOnlyDue(pipeline, now, paused) {
  const lag = pipeline.lag ?? {};
  if (lag.hours_behind !== 1 || !lag.oldest_hour || isOff(pipeline, paused)) return false;
  const closed = Date.parse(lag.oldest_hour) + (pipeline.interval_seconds + pipeline.lateness_seconds) * 1000;
  return Date.parse(now) - closed < DUE_SECONDS * 1000;
}

export const isOff = (pipeline, paused) => (pipeline.dag_ids ?? []).every((name) => paused.includes(name));

export function totals(pipelines) {
  const due = pipelines.filter((one) => one.is_due);
  const lags = pipelines.map((one) => one.lag ?? {});
  const next = pipelines
    .filter((one) => one.lag?.seconds_until_expiry !== null && one.lag?.seconds_until_expiry !== undefined)
    .sort((one, other) => one.lag.seconds_until_expiry - other.lag.seconds_until_expiry)[0];
  const oldest = pipelines
    .filter((one) => one.lag?.age_seconds)
    .sort((one, other) => other.lag.age_seconds - one.lag.age_seconds)[0];
  return {
    unit: unitOf(pipelines),
    hours: sum(lags.map((lag) => lag.hours_behind)),
    unknown: lags.filter((lag) => lag.hours_behind === null || lag.hours_behind === undefined).length,
    records: sum(lags.map((lag) => lag.records_behind)),
    // A sum of those that are known would be shown as the size of all records behind.
    bytes: lags.some((lag) => lag.records_behind && !known([lag.bytes_behind]).length) ? null : sum(lags.map((lag) => lag.bytes_behind)),
    estimated: lags.some((lag) => lag.bytes_are_estimated),
    dead: sum(pipelines.map((one) => one.dead_letters)),
    deadIn: pipelines.filter((one) => one.dead_letters).length,
    produced: sum(pipelines.map((one) => one.throughput?.produced_per_second)),
    loaded: sum(pipelines.map((one) => one.throughput?.loaded_per_second)),
    late: pipelines.filter((one) => one.lag?.hours_behind).length,
    due: due.length,
    problems: [...new Set(lags.map((lag) => lag.problem).filter(Boolean))],
    waiting: pipelines.filter((one) => one.lag?.hours_behind && !due.includes(one)),
    state: (name) => sum(pipelines.map((one) => one.states?.[name])) ?? 0,
    next,
    oldest,
  };
}

export function verdict(found, count) {
  const lost = found.state("lost");
  const failed = found.state("failed");
  const expiring = found.state("expiring");
  const reasons = [
    lost ? `${many(lost, found.unit)} lost records` : null,
    expiring ? `${many(expiring, found.unit)} about to expire` : null,
    failed ? `${many(failed, found.unit)} failed` : null,
  ].filter(Boolean);
  if (found.hours === null)
    return {
      kind: "warn",
      sign: "?",
      title: "How far behind is unknown",
      more: found.problems.length === 1 ? found.problems[0] : "each pipeline below says why",
    };
  const unknown = found.unknown ? `unknown for ${many(found.unknown, "pipeline")}` : null;
  if (found.hours > 0 && found.due === found.late && !reasons.length && !unknown)
    return {
      kind: "good",
      sign: "\u2713",
      title: `Every ${found.unit} is in but the last`,
      more: `${many(found.due, "pipeline")} of ${whole(count)}: it closed just now, and its load is due`,
    };
  if (found.hours > 0) {
    const where = `${many(found.late, "pipeline")} of ${whole(count)}`;
    return {
      kind: reasons.length ? "bad" : "warn",
      sign: "!",
      title: `${many(found.hours, found.unit)} not in yet`,
      more: [where, ...reasons, unknown].filter(Boolean).join(" \u00b7 "),
    };
  }
  if (reasons.length) {
    const title = `Every ${found.unknown ? "known " : ""}${found.unit} is in, but`;
    return { kind: "bad", sign: "!", title, more: [...reasons, unknown].filter(Boolean).join(" \u00b7 ") };
  }
  if (unknown) return { kind: "warn", sign: "?", title: `Every known ${found.unit} is in`, more: unknown };
  return {
    kind: "good",
    sign: "\u2713",
    title: `Every ${found.unit} is in`,
    more: `${many(count, "pipeline")}, nothing closed is waiting`,
  };
}

function tile(label, value, more, kind = "") {
  return h(
    "div",
    { class: "tile" },
    h("div", { class: "label" }, label),
    h("div", { class: `value ${kind}` }, value),
    h("div", { class: "more", title: more }, more || "\u00a0"),
  );
}

// What loads the hours that wait: the Dag that should have, or a command.
function todo(waiting, paused) {
  if (!waiting.length) return null;
  const hours = waiting.reduce((total, one) => total + one.lag.hours_behind, 0);
  const lines = waiting.slice(0, LISTED_MAX).map((one) => {
    const dags = (one.dag_ids ?? []).map((name) => airflowLink(`dags/${encodeURIComponent(name)}`, {}, name));
    const by = !dags.length
      ? ["by hand: "]
      : isOff(one, paused)
        ? ["its Dag ", dags, " is paused: switch it on. By hand: "]
        : ["see the runs of its Dag ", dags, ". By hand: "];
    return h("li", {}, h("b", {}, one.name), " ", many(one.lag.hours_behind, unitOf([one])), ", ", by, copyable(`logbus load --pipeline ${one.name} --only-missing`));
  });
  const more = waiting.length - lines.length;
  return h(
    "details",
    { class: "todo" },
    h("summary", { dataset: { key: "todo" } }, `Load ${many(hours, unitOf(waiting))}`),
    h("ul", {}, lines, more > 0 ? h("li", {}, `and ${many(more, "more pipeline")}`) : null),
  );
}

export function headline(pipelines, shown, paused) {
  const found = totals(pipelines);
  const hours = Math.round((Date.parse(shown.end) - Date.parse(shown.start)) / 3_600_000);
  const length = hours <= 48 ? many(hours, "hour") : many(Math.round(hours / 24), "day");
  const said = verdict(found, pipelines.length);
  const taken = found.next?.lag.seconds_until_expiry;
  const nobodyKnows = found.hours === null;
  const size = found.bytes === null ? "" : `${found.estimated ? "about " : ""}${bytes(found.bytes)}`;
  return [
    h(
      "div",
      { class: `tile verdict ${said.kind}`, role: "status" },
      h("span", { class: "sign", "aria-hidden": "true" }, said.sign),
      h("div", {}, h("h1", {}, said.title), h("div", { class: "more" }, prose(said.more))),
    ),
    tile("Records behind", short(found.records), size, found.records ? "warn" : ""),
    tile(
      "Oldest not loaded",
      found.oldest ? span(found.oldest.lag.age_seconds) : MISSING,
      found.oldest ? found.oldest.name : nobodyKnows ? "not known" : "nothing waits",
    ),
    tile(
      "Next to expire",
      taken === undefined ? MISSING : `in ${span(taken)}`,
      found.next
        ? `${found.next.name}, by ${found.next.lag.expires_by}`
        : nobodyKnows || pipelines.some((one) => one.lag?.expiry_problem)
          ? "not known"
          : "nothing that waits expires",
      taken !== undefined && taken < SOON_SECONDS ? "bad" : "",
    ),
    tile(
      `Dead letters in ${length}`,
      short(found.dead),
      found.deadIn ? `in ${many(found.deadIn, "pipeline")}` : "of the hours shown",
      found.dead ? "warn" : "",
    ),
    tile("Coming in now", rate(found.produced), `${rate(found.loaded)} loaded, last hour`),
    todo(found.waiting, paused),
  ];
}
