// Addresses. Ours are relative to /logbus/ui/, so an Airflow below a path works too, and keep the connections that were asked for.
// Airflow shows us in a sandboxed frame that may neither navigate its top nor open windows. The frame is of the same origin, though:
// a link that is followed inside Airflow's own document is Airflow's own click, and leads there.

const KEPT = ["warehouse_conn_id", "kafka_conn_id"];
const SCOPE = ["dag_id", "run_id"];

export const asked = new URLSearchParams(window.location.search);

export function isFramed() {
  try {
    return window.parent !== window && Boolean(window.parent.document);
  } catch {
    return false;
  }
}

function withKept(path, values, names) {
  const query = new URLSearchParams();
  for (const name of names) if (asked.get(name) && !asked.get(name).includes("{")) query.set(name, asked.get(name));
  for (const [name, value] of Object.entries(values)) if (value !== null && value !== undefined) query.set(name, value);
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

// A page of ours, in the same frame; the Dag or run we are shown for stays chosen.
export function pageAddress(page, values = {}) {
  return withKept(page, values, [...KEPT, ...SCOPE]);
}

export function windowAddress(pipeline, start) {
  return pageAddress("window", { pipeline, start });
}

export function apiAddress(path, values = {}) {
  return withKept(`../api/${path}`, values, KEPT);
}

// Addresses from the server are complete: they include the path below which Airflow is served.
export function actionAddress(href) {
  const [path, query] = href.split("?");
  return withKept(path, Object.fromEntries(new URLSearchParams(query ?? "")), KEPT);
}

// A page of Airflow's: an address from the server, or one below Airflow's own, without a leading slash.
export function airflowAddress(href) {
  return new URL(href, new URL("../../", window.location.href)).href;
}

export function follow(event, address) {
  if (event.defaultPrevented || event.button !== 0 || !isFramed()) return;
  event.preventDefault();
  const target = window.parent.document;
  const link = target.createElement("a");
  link.href = address;
  if (event.ctrlKey || event.metaKey || event.shiftKey) Object.assign(link, { target: "_blank", rel: "noopener" });
  target.body.append(link);
  link.click();
  link.remove();
}
