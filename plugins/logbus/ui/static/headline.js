// The first line of the wall: is every hour in? Sums over what the overview says of each pipeline; what nobody knows stays unknown.

import { h } from "./dom.js";
import { bytes, many, MISSING, rate, short, span, whole } from "./format.js";
import { sum } from "./sums.js";

const SOON_SECONDS = 86_400;

export function totals(pipelines) {
  const lags = pipelines.map((one) => one.lag ?? {});
  const next = pipelines
    .filter((one) => one.lag?.seconds_until_expiry !== null && one.lag?.seconds_until_expiry !== undefined)
    .sort((one, other) => one.lag.seconds_until_expiry - other.lag.seconds_until_expiry)[0];
  const oldest = pipelines
    .filter((one) => one.lag?.age_seconds)
    .sort((one, other) => other.lag.age_seconds - one.lag.age_seconds)[0];
  return {
    hours: sum(lags.map((lag) => lag.hours_behind)),
    unknown: lags.filter((lag) => lag.hours_behind === null || lag.hours_behind === undefined).length,
    records: sum(lags.map((lag) => lag.records_behind)),
    bytes: sum(lags.map((lag) => lag.bytes_behind)),
    estimated: lags.some((lag) => lag.bytes_are_estimated),
    dead: sum(pipelines.map((one) => one.dead_letters)),
    deadIn: pipelines.filter((one) => one.dead_letters).length,
    produced: sum(pipelines.map((one) => one.throughput?.produced_per_second)),
    loaded: sum(pipelines.map((one) => one.throughput?.loaded_per_second)),
    late: pipelines.filter((one) => one.lag?.hours_behind).length,
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
    lost ? `${many(lost, "hour")} lost records` : null,
    expiring ? `${many(expiring, "hour")} about to expire` : null,
    failed ? `${many(failed, "hour")} failed` : null,
  ].filter(Boolean);
  if (found.hours === null)
    return {
      kind: "warn",
      sign: "?",
      title: "How far behind is unknown",
      more: "the broker and the ledger have to answer both",
    };
  const unknown = found.unknown ? `nothing is known of ${many(found.unknown, "pipeline")}` : null;
  if (found.hours > 0) {
    const where = `${many(found.late, "pipeline")} of ${whole(count)}`;
    return {
      kind: reasons.length ? "bad" : "warn",
      sign: "!",
      title: `${many(found.hours, "hour")} not in yet`,
      more: [where, ...reasons, unknown].filter(Boolean).join(" \u00b7 "),
    };
  }
  if (reasons.length) {
    const title = found.unknown ? "Every known hour is in, but" : "Every hour is in, but";
    return { kind: "bad", sign: "!", title, more: [...reasons, unknown].filter(Boolean).join(" \u00b7 ") };
  }
  if (unknown) return { kind: "warn", sign: "?", title: "Every known hour is in", more: unknown };
  return {
    kind: "good",
    sign: "\u2713",
    title: "Every hour is in",
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

export function headline(pipelines) {
  const found = totals(pipelines);
  const said = verdict(found, pipelines.length);
  const taken = found.next?.lag.seconds_until_expiry;
  const nobodyKnows = found.hours === null;
  const size = found.bytes === null ? "" : `${found.estimated ? "about " : ""}${bytes(found.bytes)}`;
  return [
    h(
      "div",
      { class: `tile verdict ${said.kind}`, role: "status" },
      h("span", { class: "sign", "aria-hidden": "true" }, said.sign),
      h("div", {}, h("h1", {}, said.title), h("div", { class: "more" }, said.more)),
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
        : nobodyKnows
          ? "not known"
          : "nothing that waits is due",
      taken !== undefined && taken < SOON_SECONDS ? "bad" : "",
    ),
    tile(
      "Dead letters",
      short(found.dead),
      found.deadIn ? `in ${many(found.deadIn, "pipeline")}` : "every record parsed",
      found.dead ? "warn" : "",
    ),
    tile("Coming in", rate(found.produced), `loaded at ${rate(found.loaded)}`),
  ];
}
