/** The requests of the list: pages that are loaded when they are seen, and those that arrived since. */
import { ApiError, get, isAborted, reason } from "./api.js";
import { follow } from "./live.js";
import { render, state } from "./state.js";

const PAGE = 200;
const MOST_FRESH = 3000; // rows that arrived since the list was loaded; then it is loaded again

export const rows = {
  filter: "",
  until: "", // the newest request of the pages
  total: 0,
  matched: 0,
  /** @type {Map<number, Row[]>} */
  pages: new Map(),
  /** @type {Row[]} newest first */
  fresh: [],
  isLoaded: false,
  problem: "",
  isWrong: false, // the filter is not valid
  added: 0, // rows that arrived since the list was drawn last
};

/** @type {Set<string>} */
let known = new Set();

/** @type {Set<number>} pages that are on their way */
let asked = new Set();
let abort = new AbortController();

/** Load the list anew. @param {string} filter */
export async function loadRows(filter) {
  abort.abort();
  const { signal } = (abort = new AbortController());
  rows.filter = filter;
  try {
    const {
      rows: first,
      until,
      total,
      matched,
      cursor,
    } = /** @type {Page} */ (await get("requests", { filter, limit: PAGE }, signal));
    Object.assign(rows, {
      until,
      total,
      matched,
      isLoaded: true,
      problem: "",
      added: 0,
      fresh: [],
      pages: new Map([[0, first]]),
    });
    known = new Set(first.map((row) => row.id));
    asked = new Set();
    void follow(filter, cursor, { row: addRow, missed: () => loadRows(filter) });
  } catch (error) {
    if (isAborted(error)) return;
    rows.problem = reason(error);
    rows.isWrong = error instanceof ApiError && error.status === 422;
    if (!rows.isWrong) setTimeout(() => signal.aborted || state.session !== "open" || loadRows(filter), 2000);
  }
  render("list");
}

/** @param {Row} row */
function addRow(row) {
  if (known.has(row.id)) return;
  known.add(row.id);
  rows.fresh.unshift(row);
  rows.total += 1;
  rows.added += 1;
  state.running = state.running.filter((each) => each.id !== row.id);
  if (rows.fresh.length > MOST_FRESH) void loadRows(rows.filter);
  else render("list");
}

/** How many rows stand before the pages. */
function before() {
  return state.running.length + rows.fresh.length;
}

export function rowCount() {
  return before() + rows.matched;
}

/** The row at an index, null if it is not loaded. @param {number} index @returns {Row | null} */
export function rowAt(index) {
  const offset = index - before();
  return (
    (offset < 0
      ? [...state.running, ...rows.fresh][index]
      : rows.pages.get(Math.floor(offset / PAGE))?.[offset % PAGE]) ?? null
  );
}

/** Where a request stands in what is loaded; -1 if it is not there. @param {string} id */
export function indexOf(id) {
  const first = [...state.running, ...rows.fresh].findIndex((row) => row.id === id);
  if (first >= 0) return first;
  for (const [number, page] of rows.pages) {
    const at = page.findIndex((row) => row.id === id);
    if (at >= 0) return before() + number * PAGE + at;
  }
  return -1;
}

/** Load the pages of visible rows. @param {number} from @param {number} to */
export function need(from, to) {
  const last = Math.floor((Math.min(to - before(), rows.matched) - 1) / PAGE);
  for (let number = Math.max(0, Math.floor((from - before()) / PAGE)); number <= last; number += 1)
    if (!rows.pages.has(number) && !asked.has(number)) void loadPage(number);
}

/** @param {number} number */
async function loadPage(number) {
  const { signal } = abort;
  const mine = asked.add(number);
  try {
    const page = /** @type {Page} */ (
      await get("requests", { filter: rows.filter, until: rows.until, offset: number * PAGE, limit: PAGE }, signal)
    );
    rows.pages.set(number, page.rows);
    rows.matched = page.matched;
  } catch (error) {
    if (isAborted(error)) return;
    await new Promise((resolve) => setTimeout(resolve, 1000)); // not at once again
  }
  mine.delete(number);
  if (!signal.aborted) render("list");
}
