// Walking the grid by keyboard: one cell can be reached by Tab, the arrows move on from there (the pattern of an ARIA grid). Left of the
// first cell is the pipeline's name, which leads to its page.

import { parse } from "./format.js";

const DAY_MS = 86_400_000;

function move(map, cell, key, withControl) {
  const rowIndex = map.rows.findIndex((row) => row.cells.includes(cell));
  const row = map.rows[rowIndex];
  const index = row.cells.indexOf(cell);
  const beside = (offset) => row.cells[Math.min(Math.max(index + offset, 0), row.cells.length - 1)];
  const aDay = Math.max(1, Math.round(DAY_MS / (parse(cell.cell.end) - parse(cell.cell.start))));
  const steps = {
    ArrowLeft: () => beside(-1),
    ArrowRight: () => beside(1),
    ArrowUp: () => across(map, rowIndex, -1, cell),
    ArrowDown: () => across(map, rowIndex, 1, cell),
    Home: () => (withControl ? map.rows.find((one) => one.cells.length).cells[0] : row.cells[0]),
    End: () => (withControl ? map.rows.findLast((one) => one.cells.length).cells.at(-1) : row.cells.at(-1)),
    PageUp: () => beside(-aDay),
    PageDown: () => beside(aDay),
  };
  return steps[key]?.() ?? null;
}

// The cell of the same time in the next row that has any.
function across(map, rowIndex, step, cell) {
  for (let index = rowIndex + step; map.rows[index]; index += step) {
    const cells = map.rows[index].cells;
    if (cells.length) return cells.findLast((one) => one.cell.start <= cell.cell.start) ?? cells[0];
  }
  return cell;
}

function nameBeside(map, cell) {
  const row = map.rows.find((one) => one.cells[0] === cell);
  return row?.element.querySelector(".name a");
}

function cellBeside(map, name) {
  return map.rows.find((one) => one.element.contains(name))?.cells[0];
}

export function focusOn(map, cell) {
  for (const former of map.element.querySelectorAll('.cell[tabindex="0"]')) former.tabIndex = -1;
  cell.tabIndex = 0;
  cell.focus();
}

// `open(cell element)` is called for Enter and a click; `choose(cell element, upTo)` for Space, Shift with an arrow, and a click with Ctrl
// or Shift. `isChoosing()`: every click chooses.
export function walk(map, { open, choose, isChoosing }) {
  map.element.addEventListener("keydown", (event) => {
    const cell = event.target.closest(".cell");
    const aside = cell
      ? event.key === "ArrowLeft" && nameBeside(map, cell)
      : event.key === "ArrowRight" && cellBeside(map, event.target);
    if (aside) {
      event.preventDefault();
      aside.focus();
      return;
    }
    if (!cell) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (event.key === "Enter") open(cell);
      else choose(cell, false);
      return;
    }
    const next = move(map, cell, event.key, event.ctrlKey || event.metaKey);
    if (!next) return;
    event.preventDefault();
    focusOn(map, next);
    if (event.shiftKey && next.pipeline === cell.pipeline) {
      if (cell.getAttribute("aria-selected") !== "true") choose(cell, false);
      choose(next, true);
    }
  });
  map.element.addEventListener("click", (event) => {
    const cell = event.target.closest(".cell");
    if (!cell) return;
    if (isChoosing() || event.ctrlKey || event.metaKey || event.shiftKey) choose(cell, event.shiftKey);
    else open(cell);
  });
}
