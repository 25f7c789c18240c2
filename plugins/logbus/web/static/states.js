// The states of an hour, from what needs attention to what is fine: the order in which they are listed and sorted.

export const STATES = [
  { name: "lost", label: "Lost", letter: "X", meaning: "records were deleted before they were loaded", trouble: 6 },
  { name: "expiring", label: "Expiring", letter: "E", meaning: "not loaded, and retention deletes it soon", trouble: 5 },
  { name: "failed", label: "Failed", letter: "F", meaning: "the last attempt failed, nothing is loaded", trouble: 4 },
  { name: "loading", label: "Loading", letter: "\u2026", meaning: "an attempt is running", trouble: 0 },
  { name: "dead_letters", label: "Dead letters", letter: "D", meaning: "loaded, but some records did not parse", trouble: 2 },
  { name: "closed", label: "Closed", letter: "C", meaning: "over, waiting to be loaded", trouble: 3 },
  { name: "loaded", label: "Loaded", letter: "L", meaning: "loaded, not yet audited", trouble: 0 },
  { name: "audited", label: "Audited", letter: "\u2713", meaning: "loaded, and a second witness counted the same", trouble: 0 },
  { name: "open", label: "Open", letter: "", meaning: "not over yet, or records may still come", trouble: 0 },
];

const UNKNOWN = { name: "unknown", label: "Unknown", letter: "?", meaning: "a state this page does not know", trouble: 0 };
const byName = new Map(STATES.map((state) => [state.name, state]));

export function stateOf(name) {
  return byName.get(name) ?? { ...UNKNOWN, label: name || UNKNOWN.label };
}
