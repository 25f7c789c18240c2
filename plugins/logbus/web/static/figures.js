// The figures next to a pipeline's hours: how far behind, since when, until when, how fast.

import { airflowLink } from "./chrome.js";
import { h } from "./dom.js";
import { bytes, many, MISSING, rate, short, span, unitOf } from "./format.js";
import { pageAddress } from "./frame.js";
import { sparkline } from "./sparkline.js";

const SOON_SECONDS = 86_400;

const isKnown = (value) => value !== null && value !== undefined;

function figure(label, isCalm, ...children) {
  return h("div", { class: `figure ${isCalm ? "calm" : ""}`, role: "gridcell", dataset: { label } }, ...children);
}

export function pipelineName(pipeline) {
  const route = pipeline.topic === pipeline.table ? pipeline.topic : `${pipeline.topic} \u2192 ${pipeline.table}`;
  const dags = pipeline.dag_ids?.length ? many(pipeline.dag_ids.length, "Dag") : "no Dag: loaded by hand";
  const shown = route === pipeline.name ? dags : route;
  const known = pipeline.dag_ids?.length ? pipeline.dag_ids.join(", ") : "no Dag yet";
  const trouble = pipeline.lag?.problem;
  return h(
    "div",
    { class: "name", role: "rowheader", title: `${route}; ${known}` },
    h("a", { href: pageAddress("pipeline", { pipeline: pipeline.name }), tabindex: "-1" }, h("b", {}, pipeline.name)),
    trouble ? h("small", { class: "trouble", title: trouble.replaceAll("`", "") }, brief(trouble)) : h("small", {}, shown),
  );
}

// The first part of a sentence; the rest is in its tooltip, and on the pipeline's hours.
const brief = (text) => text.split(/[:;]/)[0].replaceAll("`", "");

// Hours without records: they are still to be frozen, but nothing waits for them.
const withoutRecords = (lag, unit) => (lag.hours_empty ? `${many(lag.hours_empty, unit)} without records` : null);

// The row's button: to load its waiting hours, or to switch on its Dag. If it has no Dag, the headline has the command.
function action(pipeline) {
  if (!pipeline.dag_ids?.length || pipeline.is_due) return null;
  if (pipeline.is_off)
    return airflowLink(`dags/${encodeURIComponent(pipeline.dag_ids[0])}`, { class: "act", title: "Its Dag is paused", "aria-label": `Switch on the Dag of ${pipeline.name}` }, "Switch on");
  return h(
    "button",
    { type: "button", class: "act", dataset: { load: pipeline.name, key: `load-${pipeline.name}` }, "aria-label": `Load the waiting hours of ${pipeline.name}` },
    "Load",
  );
}

function behind(pipeline) {
  const [lag, isDue, unit] = [pipeline.lag ?? {}, pipeline.is_due, unitOf([pipeline])];
  if (!isKnown(lag.hours_behind)) return figure("Behind", true, h("b", {}, "not known"), h("small", {}, "\u00a0"));
  if (!lag.hours_behind && !lag.records_behind)
    return figure(
      "Behind",
      true,
      h("b", {}, "nothing"),
      h("small", { title: withoutRecords(lag, unit) }, isKnown(lag.records_open) ? `${short(lag.records_open)} in open ${unit}s` : "\u00a0"),
    );
  const size = isKnown(lag.bytes_behind) ? ` \u00b7 ${lag.bytes_are_estimated ? "~" : ""}${bytes(lag.bytes_behind)}` : "";
  const told = [`${short(lag.records_behind)} records${size}`, withoutRecords(lag, unit)].filter(Boolean).join(", ");
  return figure(
    "Behind",
    false,
    h("b", { class: isDue ? "" : "bad" }, many(lag.hours_behind, unit)),
    action(pipeline),
    isDue ? h("small", { title: told }, "closed just now") : h("small", { title: told }, `${short(lag.records_behind)} rec${size}`),
  );
}

function due(lag) {
  if (!isKnown(lag.age_seconds)) return figure("Oldest waiting", true, h("b", {}, MISSING), h("small", {}, "\u00a0"));
  const soon = isKnown(lag.seconds_until_expiry) && lag.seconds_until_expiry < SOON_SECONDS;
  const until = isKnown(lag.seconds_until_expiry)
    ? `gone in ${span(lag.seconds_until_expiry)}`
    : lag.expires_by
      ? "gone by size"
      : lag.expiry_problem
        ? "kept?"
        : "kept";
  const why = lag.expires_by ? `deleted by ${lag.expires_by}` : (lag.expiry_problem ?? "nothing deletes it");
  return figure(
    "Oldest waiting",
    false,
    h("b", {}, span(lag.age_seconds)),
    h("small", { class: soon ? "bad" : "", title: why }, until),
  );
}

function throughput(flow) {
  const label = `${rate(flow?.produced_per_second)} in, ${rate(flow?.loaded_per_second)} loaded`;
  const drawn = sparkline(flow?.series, `the last 24 hours shown; now ${label}`);
  return figure("Throughput", !drawn, drawn ?? h("b", {}, MISSING), h("small", { title: "in: since the previous reading; loaded: average over the last hour" }, label));
}

export function figures(pipeline) {
  const lag = pipeline.lag ?? {};
  return [behind(pipeline), due(lag), throughput(pipeline.throughput)];
}
