// The cells of a pipeline from the columns in which they are sent (logbus/web/cells.py, docs/airflow.md): a letter and a number for each,
// and exceptions by position.

const STATES = {
  X: "lost",
  E: "expiring",
  F: "failed",
  R: "loading",
  D: "dead_letters",
  A: "audited",
  L: "loaded",
  C: "closed",
  O: "open",
};
const IS_LOADED = "DAL";
const WAS_TRIED = `${IS_LOADED}FR`;

const instant = (milliseconds) => new Date(milliseconds).toISOString().replace(".000Z", "Z");

// In order of time; `start` and `end` as instants are written everywhere else.
export function cellsOf(pipeline) {
  const { runs, states, records, ...rare } = pipeline.cells;
  const cells = [];
  for (const run of runs) {
    const length = (run.seconds ?? pipeline.interval_seconds) * 1000;
    const begin = Date.parse(run.start);
    for (let number = 0; number < run.count; number += 1) {
      const place = cells.length;
      const letter = states[place];
      const dead = rare.dead_lettered?.[place] ?? 0;
      cells.push({
        start: instant(begin + number * length),
        end: instant(begin + (number + 1) * length),
        state: STATES[letter] ?? letter,
        records: records[place],
        loaded: rare.loaded?.[place] ?? (IS_LOADED.includes(letter) ? (records[place] ?? 0) - dead : 0),
        dead_lettered: dead,
        lost: rare.lost?.[place] ?? 0,
        attempts: rare.attempts?.[place] ?? (WAS_TRIED.includes(letter) ? 1 : 0),
        note: rare.note?.[place] ?? null,
        of_run: rare.of_run?.[place] ?? false,
      });
    }
  }
  return cells;
}
