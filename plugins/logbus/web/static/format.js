// Numbers, sizes, spans of time and instants as people read them. Pure; a missing value is a dash, never NaN.

export const MISSING = "\u2013";
const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;
const grouped = new Intl.NumberFormat("en");
const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);

export function whole(value) {
  return isMissing(value) ? MISSING : grouped.format(Math.round(value));
}

// 1,234 stays; 12,345 becomes 12.3 k.
export function short(value) {
  if (isMissing(value)) return MISSING;
  if (Math.abs(value) < 10_000) return whole(value);
  return scaled(value, 1000, ["", "k", "M", "G", "T"]);
}

export function bytes(value) {
  if (isMissing(value)) return MISSING;
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
}

function scaled(value, step, units) {
  let power = 0;
  let rest = value;
  while (Math.abs(rest) >= step && power < units.length - 1) {
    rest /= step;
    power += 1;
  }
  const digits = power === 0 || Math.abs(rest) >= 100 ? 0 : 1;
  return `${rest.toFixed(digits)} ${units[power]}`.trim();
}

export function rate(perSecond) {
  if (isMissing(perSecond)) return MISSING;
  if (perSecond === 0) return "0/s";
  return perSecond < 10 ? `${perSecond.toFixed(perSecond < 0.1 ? 2 : 1)}/s` : `${short(perSecond)}/s`;
}

// Two units at most: 3 d 4 h, 5 h 20 min, 42 s.
export function span(seconds) {
  if (isMissing(seconds)) return MISSING;
  const total = Math.max(0, Math.round(seconds));
  if (total < MINUTE) return `${total} s`;
  if (total < HOUR) return joined(total, MINUTE, "min", 1, "s", 10 * MINUTE);
  if (total < DAY) return joined(total, HOUR, "h", MINUTE, "min", DAY);
  if (total >= 730 * DAY) return `${Math.round(total / (365.25 * DAY))} years`;
  return joined(total, DAY, "d", HOUR, "h", 10 * DAY);
}

function joined(total, unit, name, smaller, smallerName, fineBelow) {
  const first = Math.floor(total / unit);
  const second = Math.floor((total % unit) / smaller);
  return second && total < fineBelow ? `${first} ${name} ${second} ${smallerName}` : `${first} ${name}`;
}

export function parse(instant) {
  return instant ? new Date(instant) : null;
}

const two = (number) => String(number).padStart(2, "0");

export function clock(instant) {
  const at = parse(instant);
  return at ? `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}` : MISSING;
}

export function clockSeconds(instant) {
  const at = parse(instant);
  return at ? `${clock(instant)}:${two(at.getUTCSeconds())}` : MISSING;
}

export function day(instant) {
  const at = parse(instant);
  return at ? `${DAYS[at.getUTCDay()]} ${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]}` : MISSING;
}

export function date(instant) {
  const at = parse(instant);
  return at ? `${at.getUTCFullYear()}-${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}` : MISSING;
}

export function moment(instant) {
  return instant ? `${date(instant)} ${clockSeconds(instant)} UTC` : MISSING;
}

// An hour as a person says it: Sat 21 Nov 2026, 10:00 to 11:00 UTC.
export function hour(start, end) {
  const from = parse(start);
  const long = parse(end) - from >= DAY * 1000;
  const until = long ? `${day(end)} ${clock(end)}` : clock(end);
  return `${day(start)} ${from.getUTCFullYear()}, ${clock(start)} to ${until} UTC`;
}

export function ago(instant, now) {
  return instant ? `${span((parse(now) - parse(instant)) / 1000)} ago` : MISSING;
}

export function many(count, one, several = `${one}s`) {
  return `${whole(count)} ${count === 1 ? one : several}`;
}

// What the windows of these pipelines are called together.
export function unitOf(pipelines) {
  const lengths = new Set(pipelines.map((one) => one.interval_seconds ?? HOUR));
  if (lengths.size > 1) return "window";
  return { [HOUR]: "hour", [DAY]: "day" }[[...lengths][0] ?? HOUR] ?? "window";
}

// A part of a whole, in percent; a very small part does not become 0.
export function share(value) {
  if (isMissing(value)) return MISSING;
  if (value > 0 && value < 0.001) return "< 0.1 %";
  return `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
}

// Airflow's id of a run in words: scheduled__2026-11-23T10:05:00+00:00 is "scheduled, Mon 23 Nov 10:05". Other ids stay as they are.
export function runOf(id) {
  const [, kind, instant] = /^([a-z_]+?)__(\d{4}-\d\d-\d\dT.+)$/.exec(id ?? "") ?? [];
  if (!kind || Number.isNaN(Date.parse(instant.slice(0, 32).replace(/(Z|[+-]\d\d:\d\d).*$/, "$1")))) return id ?? MISSING;
  const at = new Date(Date.parse(instant.replace(/(Z|[+-]\d\d:\d\d).*$/, "$1"))).toISOString();
  return `${kind.replaceAll("_", " ")}, ${day(at)} ${clock(at)}`;
}
