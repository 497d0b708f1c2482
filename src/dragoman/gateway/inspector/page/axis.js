/** Positions on a time axis, and what stands at them. Pure. */

/** Where a value stands. @param {Scale} scale @param {number} value */
export function place({ from, to, left, right }, value) {
  return Math.round((left + ((value - from) / (to - from || 1)) * (right - left)) * 10) / 10;
}

/** The value at a place. @param {Scale} scale @param {number} x */
export function valueAt({ from, to, left, right }, x) {
  return from + Math.min(1, Math.max(0, (x - left) / (right - left || 1))) * (to - from);
}

/**
 * Round values between two, at most about `most` of them.
 *
 * @param {number} from
 * @param {number} to
 * @param {number} most
 */
export function ticks(from, to, most) {
  const step = niceStep((to - from) / most);
  const values = [];
  for (let at = Math.ceil(from / step); at * step <= to; at += 1) values.push(at * step);
  return values;
}

/** The next of 1, 2, 5, 10, 20 … @param {number} least */
export function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least || 1));
  return ([1, 2, 5].find((factor) => least <= factor * power * 1.0001) ?? 10) * power;
}

const CLOCK = [1, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080, 20_160, 43_200]; // minutes

/** @param {number} least */
export function clockStep(least) {
  return 60 * (CLOCK.find((step) => 60 * step >= least) ?? 86_400);
}

/**
 * The index of the first element that is greater than a value, in a sorted array.
 *
 * @param {ArrayLike<number>} sorted
 * @param {number} value
 */
export function after(sorted, value) {
  let low = 0;
  for (let high = sorted.length; low < high;) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * The rows of bars so that those of one row do not overlap.
 *
 * @param {[from: number, to: number][]} bars by their beginning
 * @param {number} most rows
 */
export function pack(bars, most) {
  /** @type {number[]} */
  const ends = [];
  return bars.map(([from, to]) => {
    const free = ends.findIndex((end) => end <= from);
    const row = free < 0 ? Math.min(ends.length, most - 1) : free;
    ends[row] = to;
    return row;
  });
}
