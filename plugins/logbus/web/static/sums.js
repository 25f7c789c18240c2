// Sums of what is known: if nothing is known, the sum is unknown, and not zero.

export const known = (values) => values.filter((value) => value !== null && value !== undefined);

export function sum(values) {
  const found = known(values);
  return found.length ? found.reduce((total, value) => total + value, 0) : null;
}
