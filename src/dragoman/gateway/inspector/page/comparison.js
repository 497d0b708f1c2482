/** Two bodies in columns, one row a section, and the notes between them. */
import { h, put } from "./dom.js";
import { bytes, plural } from "./format.js";
import { actionSign, icon } from "./icon.js";
import { nothing } from "./part.js";
import { SectionView, SIDES } from "./section.js";
import { keepFlag, readFlag } from "./state.js";
import { name, wire } from "./text.js";
import { leadsTo } from "./tree.js";

const OPEN = 60_000; // bytes of sections that are unfolded at first

export class Comparison {
  /** @param {Bodies} bodies @param {ComparisonOptions} options */
  constructor(bodies, options) {
    this.bodies = bodies;
    this.options = options;
    this.chosen = -1;
    this.isCanonical = false;
    /** @type {Canonical | undefined} */
    this.canonical = undefined;
    this.canonicalBox = h("input", { type: "checkbox", onchange: () => this.setCanonical(this.canonicalBox.checked) });
    this.chips = h("div.chips", { role: "group", "aria-label": "Changes" });
    this.strip = h("div.notestrip", { role: "status", hidden: true });
    this.grid = h("div.sections");
    this.views = bodies.sections.map((section) => new SectionView(section, this));
    this.element = h("div.comparison", this.bar(), this.chips, this.strip, this.grid);
    put(
      this.grid,
      this.views.length
        ? [this.heads(), this.views.map((view) => view.element)]
        : nothing(
            bodies.refusal ? "This cannot be expressed there" : "No body",
            bodies.refusal || bodies.problem || "Neither side has a body.",
          ),
    );
    this.drawChips();
    this.openSome();
    let width = 0;
    this.sizes = new ResizeObserver(() => {
      if (width !== this.grid.clientWidth) this.align();
      width = this.grid.clientWidth;
    });
    this.sizes.observe(this.grid);
    requestAnimationFrame(() => {
      this.showNote(options.note ?? -1);
      if (options.place) void this.showPlace(options.place);
    });
  }

  close() {
    this.sizes.disconnect();
  }

  bar() {
    const { sections, same_bytes: isSame, problem, refusal } = this.bodies;
    const differs = h("input", {
      type: "checkbox",
      checked: readFlag("hide-same"),
      onchange: () => {
        keepFlag("hide-same", differs.checked);
        hide();
      },
    });
    const hide = () => this.grid.classList.toggle("hide-same", differs.checked);
    hide();
    const all = (/** @type {boolean} */ isOpen) =>
      h(
        "button.small",
        {
          onclick: async () => {
            await Promise.all(this.views.map((view) => view.setOpen(isOpen)));
            this.align();
          },
        },
        isOpen ? "Unfold all" : "Fold all",
      );
    return h(
      "div.bar",
      this.options.head,
      isSame
        ? h("span.badge.well", icon("check"), "the same bytes")
        : h(
            "span.soft",
            `${plural(sections.length, "section")}, ${sections.filter(({ status }) => status === "same").length} equal`,
          ),
      problem && h("span.warn", icon("warning"), wire(problem)),
      refusal && h("span.mistake", icon("refused"), wire(refusal)),
      h(
        "div.actions",
        h("label.check", differs, "Only what differs"),
        this.options.canonical &&
          h("label.check", { title: "What both are translated through (c)" }, this.canonicalBox, "Canonical form"),
        all(true),
        all(false),
      ),
    );
  }

  heads() {
    const [client, upstream] = SIDES.map((side) => {
      const body = this.bodies[side];
      return h(
        "div",
        { class: `colhead ${side}` },
        h("h2", side === "client" ? "Client" : "Upstream"),
        h("span.soft", body ? `${body.dialect} \u00b7 ${bytes(body.bytes)}` : "none"),
        body && h("div.actions", this.options.tools?.(side)),
      );
    });
    return h("div.heads", client, h("div.colhead.canonical", h("h2", "Canonical")), upstream);
  }

  /** Unfold what has notes, then what differs, then what is equal, as long as it is small. */
  openSome() {
    let left = OPEN;
    const rank = (/** @type {SectionView} */ { section }) =>
      section.notes.length ? 0 : section.status === "same" ? 2 : 1;
    for (const view of [...this.views].sort((one, two) => rank(one) - rank(two))) {
      left -= view.size;
      if (left > 0 && (rank(view) < 2 || this.views.length <= 3)) void view.setOpen(true);
    }
  }

  /** Put blocks that belong together at one height. */
  align() {
    for (const room of this.grid.querySelectorAll(".room")) room.remove();
    const inserts = this.views.flatMap((view) => view.rooms()); // measured together: the browser lays out the page once
    for (const insert of inserts) insert();
  }

  /** @param {boolean} isShown */
  async setCanonical(isShown) {
    this.isCanonical = this.canonicalBox.checked = isShown;
    this.grid.classList.toggle("with-canonical", isShown);
    if (isShown) this.canonical ??= await this.options.canonical?.().catch(() => undefined);
    for (const view of this.views) view.showCanonical();
    this.align();
  }

  /** One button for each rule; its notes follow each other. */
  drawChips() {
    const { notes } = this.bodies;
    put(
      this.chips,
      [...Map.groupBy(notes, ({ rule }) => rule)].map(([rule, own]) => {
        const here = own.indexOf(notes[this.chosen]);
        return h(
          "button.chip",
          {
            "aria-pressed": String(here >= 0),
            title: own[0].detail,
            onclick: () => this.choose(notes.indexOf(own[here + 1])),
          },
          actionSign(own[0].action),
          h("code", rule),
          own.length > 1 && h("span.count", here >= 0 && `${here + 1}/`, own.length),
        );
      }),
    );
  }

  /** Choose a note; -1 is none. @param {number} note */
  choose(note) {
    this.options.onNote?.(this.bodies.notes[note] ? note : null);
    this.showNote(note);
  }

  /** Light up both places of a note. @param {number} at */
  showNote(at) {
    const { notes } = this.bodies;
    const note = notes[at];
    if (this.chosen === at) return;
    this.chosen = note ? at : -1;
    for (const lit of this.element.querySelectorAll(".lit")) lit.classList.remove("lit");
    this.drawChips();
    this.strip.hidden = !note;
    if (!note) return;
    const step = (/** @type {string} */ title, /** @type {"left" | "chevron"} */ sign, /** @type {number} */ by) =>
      h("button.small", { "aria-label": title, title, onclick: () => this.choose(at + by) }, icon(sign));
    put(
      this.strip,
      actionSign(note.action),
      h(
        "div",
        h(
          "p",
          h("strong", h("code", note.rule)),
          " at ",
          name(note.at || "the request"),
          note.part === "response" && " of the response",
        ),
        h("p", wire(note.detail)),
      ),
      h(
        "div.group",
        step("Previous change (p)", "left", -1),
        h("span", `${at + 1} of ${notes.length}`),
        step("Next change (n)", "chevron", 1),
      ),
    );
    void this.light(at);
  }

  /** Unfold the sections of a note, and mark its lines. @param {number} at */
  async light(at) {
    const note = this.bodies.notes[at];
    const lit = [];
    for (const view of this.views) {
      if (!note?.sections.includes(view.section.number)) continue;
      await view.setOpen(true);
      for (const side of SIDES) lit.push(...view.reveal(side, note[side]));
    }
    if (this.chosen !== at) return;
    this.align();
    for (const line of lit) line?.classList.add("lit");
    lit.find(Boolean)?.scrollIntoView({ block: "center" });
  }

  /** Light up a place of the client's body. @param {string} path */
  async showPlace(path) {
    const around = this.views.filter(({ section }) => section.client && leadsTo(section.client.path, path));
    around.sort((one, two) => (two.section.client?.path.length ?? 0) - (one.section.client?.path.length ?? 0));
    await around[0]?.setOpen(true);
    const [line] = around[0]?.reveal("client", [path]) ?? [];
    this.align();
    line?.classList.add("lit");
    line?.scrollIntoView({ block: "center" });
  }

  /** @param {KeyboardEvent} event */
  onKey({ key }) {
    const { notes } = this.bodies;
    if (key === "n" && notes.length) this.choose(this.chosen + 1);
    else if (key === "p" && notes.length) this.choose(this.chosen < 0 ? notes.length - 1 : this.chosen - 1);
    else if (key === "c" && this.options.canonical) void this.setCanonical(!this.isCanonical);
    else return false;
    return true;
  }
}
