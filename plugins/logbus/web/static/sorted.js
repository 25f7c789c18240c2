// A table whose columns sort and whose rows open. The order and what is open outlive a refresh.

import { h } from "./dom.js";

const isMissing = (value) => value === null || value === undefined;

export function compare(one, other) {
  if (isMissing(one) || isMissing(other)) return isMissing(one) ? (isMissing(other) ? 0 : 1) : -1;
  return typeof one === "string" ? one.localeCompare(other) : one - other;
}

export class SortedTable {
  // `columns`: {label, of(item), show(item), isNumber, isLater}; `inner(item)` is what an opened row shows; `key(item)` its name.
  constructor({ label, columns, inner, key, changed, order = 0 }) {
    Object.assign(this, {
      label,
      columns,
      inner,
      key,
      changed,
      order,
      descending: Boolean(columns[order].isNumber),
      open: new Set(),
    });
  }

  rows(items) {
    const { of } = this.columns[this.order];
    const sign = this.descending ? -1 : 1;
    return [...items].sort((one, other) => {
      const [first, second] = [of(one), of(other)];
      if (isMissing(first) || isMissing(second)) return compare(first, second); // the unknown is last either way
      return sign * compare(first, second) || compare(this.key(one), this.key(other));
    });
  }

  sortBy(index) {
    this.descending = this.order === index ? !this.descending : Boolean(this.columns[index].isNumber);
    this.order = index;
    this.changed();
  }

  toggle(name) {
    if (!this.open.delete(name)) this.open.add(name);
    this.changed();
  }

  style(column) {
    return `${column.isNumber ? "number" : ""} ${column.isLater ? "later" : ""}`.trim() || null;
  }

  head() {
    return h(
      "tr",
      {},
      this.columns.map((column, index) => {
        const direction = index === this.order ? (this.descending ? "descending" : "ascending") : null;
        const button = h(
          "button",
          { type: "button", dataset: { key: `${this.label}-${index}` }, onclick: () => this.sortBy(index) },
          column.label,
        );
        return h("th", { scope: "col", class: this.style(column), "aria-sort": direction }, button);
      }),
    );
  }

  row(item) {
    const name = this.key(item);
    const isOpen = this.open.has(name);
    const opener = h(
      "button",
      {
        class: "opener",
        type: "button",
        "aria-expanded": String(isOpen),
        dataset: { key: `open-${name}` },
        onclick: () => this.toggle(name),
      },
      this.columns[0].show(item),
    );
    const line = h(
      "tr",
      { class: "one", id: name },
      this.columns.map((column, index) => h("td", { class: this.style(column) }, index ? column.show(item) : opener)),
    );
    return isOpen ? [line, h("tr", { class: "inner" }, h("td", { colspan: this.columns.length }, this.inner(item)))] : [line];
  }

  show(items) {
    return h(
      "div",
      { class: "scroll tall" },
      h(
        "table",
        { class: "sorted", "aria-label": this.label },
        h("thead", {}, this.head()),
        h(
          "tbody",
          {},
          this.rows(items).map((item) => this.row(item)),
        ),
      ),
    );
  }
}
