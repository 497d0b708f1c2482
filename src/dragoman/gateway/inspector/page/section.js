/** One section of two bodies: a message, the tools, the settings. Its content is made when it is unfolded. */
import { h, put } from "./dom.js";
import { bytes, plural } from "./format.js";
import { icon } from "./icon.js";
import { oneLine } from "./text.js";
import { leadsTo, Tree } from "./tree.js";
import { room } from "./virtual.js";

export const SIDES = /** @type {const} */ (["client", "upstream"]);

export class SectionView {
  /** @param {Section} section @param {import("./comparison.js").Comparison} comparison */
  constructor(section, comparison) {
    const { client, upstream, status, notes, number, kind } = section;
    this.section = section;
    this.comparison = comparison;
    this.size = (client?.bytes ?? 0) + (upstream?.bytes ?? 0);
    /** @type {Promise<void> | undefined} */
    this.making = undefined;
    /** @type {{[side: string]: Tree}} */
    this.trees = {};
    this.cells = { client: h("div.cell.client"), canonical: h("div.cell.canonical"), upstream: h("div.cell.upstream") };
    this.body = h("div.cells", { hidden: true }, Object.values(this.cells));
    const title = oneLine(section.title || kind, 80);
    this.button = h(
      "button.sectionhead",
      { "aria-expanded": "false", onclick: () => this.toggle() },
      icon("chevron"),
      h("strong", kind === "message" && `${number} `, title),
      notes.length
        ? h("span.badge.warn", plural(notes.length, "change"))
        : h("span", { class: `state ${status.replace(" ", "-")}` }, status === "same" ? "equal" : status),
      h("span.sizes", `${bytes(client?.bytes ?? 0)} \u2192 ${bytes(upstream?.bytes ?? 0)}`),
    );
    this.element = h(
      "section",
      { class: `section ${status.replace(" ", "-")}`, role: "group", "aria-label": title },
      h("h3", this.button),
      this.body,
    );
  }

  async toggle() {
    await this.setOpen(this.body.hidden === true);
    this.comparison.align();
  }

  /** @param {boolean} isOpen */
  async setOpen(isOpen) {
    this.body.hidden = !isOpen;
    this.button.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) await (this.making ??= this.make());
  }

  /** Make the content, once; a section that is too large for the first answer is loaded. */
  async make() {
    const { options } = this.comparison;
    if (options.section && SIDES.some((side) => this.section[side] && this.section[side]?.value === undefined)) {
      put(this.cells.client, h("p.waiting", "Loading\u2026"));
      this.section = await options.section(this.section.number).catch(() => this.section);
    }
    for (const side of SIDES) this.makeSide(side);
    this.showCanonical();
  }

  /** @param {SideName} side */
  makeSide(side) {
    const {
      comparison,
      section: { [side]: part },
    } = this;
    const { value: load } = comparison.options;
    if (part?.value === undefined) {
      put(
        this.cells[side],
        h(
          "p.none",
          part
            ? `Too large to show here: ${bytes(part.bytes)}`
            : side === "client"
              ? "Not in the client\u2019s body"
              : "Not sent to the upstream",
        ),
      );
      return;
    }
    const { value, path, cuts } = part;
    const note = (/** @type {string} */ at) => comparison.bodies.notes.findIndex((each) => each[side].includes(at));
    const tree = new Tree(value, {
      label: `${side} ${path || "body"}`,
      path,
      cuts,
      whole: load && ((at) => load(side, at)),
      mark: (at) => (note(at) < 0 ? "" : `noted ${comparison.bodies.notes[note(at)]?.action}`),
      pick: (at) => comparison.choose(note(at)),
    });
    this.trees[side] = tree;
    tree.element.addEventListener("click", () => requestAnimationFrame(() => comparison.align()));
    put(this.cells[side], h("p.path", h("code", oneLine(path || "body"))), tree.element);
  }

  /** The lines of places. @param {SideName} side @param {string[]} paths */
  reveal(side, paths) {
    return paths
      .filter((path) => leadsTo(this.section[side]?.path ?? null, path))
      .map((path) => this.trees[side]?.reveal(path));
  }

  /**
   * How to put blocks that belong together at one height: room before the higher one of each two. Changes nothing yet.
   */
  rooms() {
    const { client: left, upstream: right } = this.cells;
    if (this.body.hidden || Math.abs(left.getBoundingClientRect().top - right.getBoundingClientRect().top) > 4)
      return []; // not side by side
    const added = { client: 0, upstream: 0 };
    let last = -Infinity;
    /** @type {(() => void)[]} */
    const inserts = [];
    for (const block of this.section.blocks) {
      const lines = SIDES.map((side) =>
        this.trees[side]?.element.querySelector(`[data-path="${CSS.escape(block[side] ?? "?")}"]`),
      );
      const [client, upstream] = lines;
      if (!client?.getClientRects().length || !upstream?.getClientRects().length) continue;
      const [one, two] = [
        client.getBoundingClientRect().top + added.client,
        upstream.getBoundingClientRect().top + added.upstream,
      ];
      const gap = Math.abs(one - two);
      if (gap < 1 || Math.min(one, two) < last) continue; // the order differs
      last = Math.max(one, two);
      added[one < two ? "client" : "upstream"] += gap;
      inserts.push(() => (one < two ? client : upstream).before(room(gap)));
    }
    return inserts;
  }

  showCanonical() {
    const { canonical, isCanonical } = this.comparison;
    const cell = this.cells.canonical;
    if (!isCanonical || !this.making || cell.firstChild) return;
    const [own, translated] = [canonical?.sections, canonical?.translated].map(
      (all) => all?.find(({ number }) => number === this.section.number)?.value,
    );
    const isSame = translated === undefined || JSON.stringify(own) === JSON.stringify(translated);
    const part = (/** @type {string} */ title, /** @type {typeof own} */ value) => [
      h("p.path", title),
      value === undefined ? h("p.none", "nothing") : new Tree(value, { label: title }).element,
    ];
    put(
      cell,
      isSame
        ? part("canonical", own)
        : [part("canonical, of the client", own), part("canonical, after the filters", translated)],
    );
  }
}
