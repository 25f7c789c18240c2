// What the page's connection to the broker may do: the cluster, each topic and each group, operation by operation. Read only.

import { furnish, keepFresh, notice, sentence, tellProblems } from "./chrome.js";
import { byId, h, replace } from "./dom.js";
import { many } from "./format.js";
import { apiAddress } from "./frame.js";
import { Poll } from "./live.js";
import { prose } from "./prose.js";
import { SortedTable } from "./sorted.js";

const KINDS = [
  ["cluster", "The cluster", "Cluster"],
  ["topic", "Topics", "Topic"],
  ["group", "Consumer groups", "Group"],
];
// What is lacking, in the command that grants it.
function lacking(resource) {
  const sentences = Object.values(resource.lacking);
  return [
    resource.problem ? h("p", { class: "bad" }, prose(resource.problem)) : null,
    sentences.map((text) => h("p", {}, prose(text))),
    sentences.length || resource.problem ? null : h("p", { class: "quiet" }, "Nothing is lacking."),
  ];
}

function answer(resource, operation) {
  const may = resource.operations[operation];
  if (may === null) return h("span", { class: "quiet" }, "?");
  return may ? "yes" : h("span", { class: "quiet" }, "no");
}

const tables = new Map();

function table(kind, label, head, resources) {
  if (!tables.has(kind)) {
    const operations = Object.keys(resources[0].operations);
    const columns = operations.map((operation) => ({
      label: operation,
      of: (resource) => String(resource.operations[operation]),
      show: (resource) => answer(resource, operation),
    }));
    const name = { label: head, of: (resource) => resource.name, show: (resource) => resource.name || "the cluster" };
    tables.set(kind, new SortedTable({ label, key: (resource) => resource.name || kind, inner: lacking, changed: draw, columns: [name, ...columns] }));
  }
  return tables.get(kind).show(resources);
}

const NOTHING = {
  topic: "It sees no topic: there is none, or it lacks Describe on them.",
  group: "It sees no group: there is none, or it lacks Describe on them. Loads need none.",
};

function draw() {
  const { resources, conn_id: connection, left_out: leftOut, problem } = poll.data;
  const heading = h("h1", {}, "What this connection may do");
  if (!resources) {
    replace(byId("page"), heading, h("section", { class: "panel" }, h("p", { class: "bad" }, prose(sentence(problem)))));
    return;
  }
  replace(
    byId("page"),
    heading,
    h("p", { class: "quiet" }, "Airflow's connection ", h("code", {}, connection), ", as the broker answers. Open a row for what it lacks."),
    KINDS.map(([kind, label, head]) => {
      const own = resources.filter((resource) => resource.kind === kind);
      const content = own.length ? table(kind, label, head, own) : h("p", { class: "quiet" }, NOTHING[kind]);
      return h("section", { class: "panel" }, h("h2", {}, label), content);
    }),
    leftOut ? notice("warn", `${many(leftOut, "topic or group was", "topics or groups were")} not asked about`) : null,
  );
}

const poll = new Poll({ address: () => apiAddress("connection"), show: draw, tell: tellProblems });

byId("page").replaceChildren(notice("asking", "Asking the broker\u2026"));
furnish("connection", []);
keepFresh(poll);
poll.now();
