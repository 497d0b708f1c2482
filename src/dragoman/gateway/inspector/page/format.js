/** Numbers and times as the reader writes them: in the reader's language and time zone. */

const TIME = /** @type {const} */ ({ hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DAY = /** @type {const} */ ({ month: "short", day: "numeric" });
const number = new Intl.NumberFormat();
const minute = new Intl.DateTimeFormat(undefined, TIME);
const clock = new Intl.DateTimeFormat(undefined, { ...TIME, second: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, DAY);
const whole = new Intl.DateTimeFormat(undefined, {
  ...DAY,
  ...TIME,
  year: "numeric",
  second: "2-digit",
  fractionalSecondDigits: 3,
  timeZoneName: "short",
});
export const NONE = "\u2013"; // what a field shows that is not known

/** Let a function write what is known. @param {(value: number) => string} write @returns {(value: Maybe) => string} */
const known = (write) => (value) => (value === null || value === undefined ? NONE : write(value));

/** `12,345` */
export const count = known((value) => number.format(value));

/** `12.3k` */
export const short = known((value) => {
  for (const [unit, size] of /** @type {const} */ ([
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e3],
  ]))
    if (value >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  return String(Math.round(value * 100) / 100);
});

/** `1 note`, `3 notes` @param {number} value @param {string} noun */
export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** A duration from milliseconds: `0.4 ms`, `412 ms`, `3.81 s`, `2 min 5 s`. */
export const ms = known((value) => {
  if (value < 1000) return `${value < 10 ? Math.round(value * 10) / 10 : Math.round(value)} ms`;
  return value < 60_000 ? `${(value / 1000).toFixed(value < 10_000 ? 2 : 1)} s` : seconds(value / 1000);
});

/** A duration from seconds: `12 s`, `2 min 5 s`, `3 h 12 min`, `4 d 2 h` @param {number} value */
export function seconds(value) {
  const all = Math.max(Math.round(value), 0);
  if (all < 60) return `${all} s`;
  const [unit, size, less, part] =
    all < 3600 ? ["min", 60, "s", 1] : all < 172_800 ? ["h", 3600, "min", 60] : ["d", 86_400, "h", 3600];
  const rest = Math.floor((all % Number(size)) / Number(part));
  return `${Math.floor(all / Number(size))} ${unit}${rest ? ` ${rest} ${less}` : ""}`;
}

/** `88 B`, `8.1 KB`, `20.4 MB` */
export const bytes = known((value) =>
  value < 1000
    ? `${value} B`
    : `${Number((value / (value < 1e6 ? 1e3 : 1e6)).toPrecision(value < 1e5 ? 2 : 3))} ${value < 1e6 ? "KB" : "MB"}`,
);

/** Dollars from nano-dollars: `$0.0087`. */
export const dollars = known((value) =>
  value
    ? `$${value >= 1e11 ? count(Math.round(value / 1e9)) : value >= 1e9 ? (value / 1e9).toFixed(2) : (value / 1e9).toPrecision(2)}`
    : "$0",
);
export const percent = known(
  (value) =>
    `${value > 0 && value < 0.01 ? "<1" : value < 1 ? Math.min(99, Math.round(100 * value)) : Math.round(100 * value)}\u202f%`,
);

export const time = known((at) => {
  const date = new Date(at * 1000);
  return date.toDateString() === new Date().toDateString()
    ? clock.format(date)
    : `${day.format(date)} ${minute.format(date)}`;
});

export const moment = known((at) => whole.format(new Date(at * 1000)));

/** @param {number} at @param {number} span seconds that the axis covers */
export function tick(at, span) {
  return (span > 172_800 ? day : minute).format(new Date(at * 1000));
}

/** @param {Maybe} at */
export function ago(at) {
  return at ? `${seconds(Date.now() / 1000 - at)} ago` : "never";
}
