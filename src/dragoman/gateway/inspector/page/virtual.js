/**
 * A list of which only the visible rows exist, so that a million rows cost as much as fifty. All rows are equally high.
 * The room of the others is an empty SVG image above and below: its height is an attribute, and no inline style is needed.
 */
import { s } from "./dom.js";

const AROUND = 6; // rows drawn above and below the visible ones

/** Room without content. @param {number} height */
export function room(height) {
  return s("svg.room", { width: 1, height, "aria-hidden": "true" });
}

export class VirtualList {
  /** @param {HTMLElement} root where the rows go @param {Source} source */
  constructor(root, source) {
    this.root = root;
    this.source = source;
    this.above = room(0);
    this.below = room(0);
    this.rowHeight = 0;
    this.from = 0;
    this.to = 0;
    /** @type {Map<string, HTMLElement>} */
    this.rows = new Map();
    this.stop = new AbortController();
    root.append(this.above, this.below);
    let due = 0;
    const soon = () =>
      (due ||= requestAnimationFrame(() => {
        due = 0;
        if (!this.stop.signal.aborted) this.draw();
      }));
    document.addEventListener("scroll", soon, { capture: true, passive: true, signal: this.stop.signal });
    const sizes = new ResizeObserver(() => {
      this.rowHeight = 0;
      this.draw();
    });
    sizes.observe(root.parentElement ?? root);
    this.stop.signal.addEventListener("abort", () => sizes.disconnect());
  }

  close() {
    this.stop.abort();
  }

  /** The element that scrolls, and the part of the window in which its content is visible. */
  port() {
    for (let at = this.root.parentElement; at && at !== document.body; at = at.parentElement) {
      if (/auto|scroll/.test(getComputedStyle(at).overflowY)) return { scroller: at, box: at.getBoundingClientRect() };
    }
    return { scroller: document.documentElement, box: new DOMRect(0, 0, innerWidth, innerHeight) };
  }

  /** Draw the visible rows; rows whose key has not changed are kept. */
  draw() {
    const count = this.source.count();
    if (!this.rowHeight && count) this.measure();
    const height = this.rowHeight || 1;
    const { box } = this.port();
    const { top } = this.root.getBoundingClientRect();
    const within = (/** @type {number} */ index) => Math.max(0, Math.min(count, index));
    this.from = within(Math.floor((box.top - top) / height) - AROUND);
    this.to = within(Math.ceil((box.bottom - top) / height) + AROUND);
    /** @type {Map<string, HTMLElement>} */
    const next = new Map();
    for (let index = this.from; index < this.to; index += 1) {
      const key = this.source.key(index);
      const row = this.rows.get(key) ?? this.source.draw(index);
      row.setAttribute("aria-rowindex", String(index + 2)); // the titles are row 1
      next.set(key, row);
    }
    for (const [key, row] of this.rows) if (next.get(key) !== row) row.remove();
    /** @type {Element} */
    let before = this.below;
    for (const row of [...next.values()].reverse()) {
      if (row.nextSibling !== before) this.root.insertBefore(row, before);
      before = row;
    }
    this.rows = next;
    this.above.setAttribute("height", String(this.from * height));
    this.below.setAttribute("height", String((count - this.to) * height));
    this.source.seen?.(this.from, this.to);
  }

  /** Find out how high a row is: that depends on the width of the page. */
  measure() {
    const row = this.source.draw(0);
    this.root.append(row);
    this.rowHeight = row.getBoundingClientRect().height;
    row.remove();
  }

  /** Keep what is visible where it is, after rows were added above. @param {number} added */
  shift(added) {
    const { scroller, box } = this.port();
    if (this.root.getBoundingClientRect().top < box.top) scroller.scrollTop += added * this.rowHeight;
  }

  /** Scroll a row into view. @param {number} index */
  reveal(index) {
    const { scroller, box } = this.port();
    const top = this.root.getBoundingClientRect().top + index * this.rowHeight;
    const head = 2 * this.rowHeight; // what stays at the top of the list
    if (top < box.top + head) scroller.scrollTop += top - box.top - head;
    else if (top + this.rowHeight > box.bottom) scroller.scrollTop += top + this.rowHeight - box.bottom;
    this.draw();
  }

  /** The element of a row, if it exists. @param {number} index */
  element(index) {
    return this.rows.get(this.source.key(index));
  }
}
