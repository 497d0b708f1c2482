/**
 * A JSON value as a tree of lines that can be folded, with its places marked. It is one stop of the Tab key; arrows move
 * in it. Children of folded lines are made when they are unfolded, so a large value costs what is seen of it.
 */
import { h } from "./dom.js";
import { icon } from "./icon.js";
import { oneLine, wire } from "./text.js";

const LINES = 300; // unfolded at first
const LONG = 1500; // characters of a string that are shown at first
const MANY = 100; // children that are made at once

export class Tree {
  /** @param {Json} value @param {TreeOptions} options */
  constructor(value, options) {
    const { path = "", label, cuts = [] } = options;
    this.options = options;
    this.left = LINES;
    this.cuts = new Map(cuts.map((cut) => [join(path, cut.path), cut.length]));
    /** @type {WeakMap<Element, () => void>} how to make what a line does not show yet */
    this.makers = new WeakMap();
    this.element = h(
      "div.tree.wire",
      {
        role: "tree",
        "aria-label": label,
        onkeydown: (event) => this.onKey(event),
        onclick: (event) => this.onClick(event),
      },
      this.line(value, path, null, true),
    );
    this.element.firstElementChild?.setAttribute("tabindex", "0");
  }

  /**
   * @param {Json} value
   * @param {string} path
   * @param {string | null} key the name before the value
   * @param {boolean} isLast
   */
  line(value, path, key, isLast) {
    this.left -= 1;
    const item = h("div", {
      class: `line ${this.options.mark?.(path) ?? ""}`,
      role: "treeitem",
      tabindex: -1,
      "data-path": path,
    });
    const before = key === null ? "" : [h("span.k", wire(JSON.stringify(key))), ": "];
    const comma = isLast ? "" : ",";
    const isArray = Array.isArray(value);
    const [open, close] = isArray ? "[]" : "{}";
    const entries =
      value !== null && typeof value === "object" ? /** @type {[string, Json][]} */ (Object.entries(value)) : [];
    if (!entries.length) {
      item.append(
        h(
          "span.text",
          before,
          value !== null && typeof value === "object" ? `${open}${close}` : this.scalar(value, path),
          comma,
        ),
      );
      return item;
    }
    const group = h("div.children", { role: "group" });
    item.append(
      h(
        "span.text",
        h("span.toggle", icon("fold")),
        before,
        open,
        h("span.gist", ` ${gist(isArray, entries)} `, close, comma),
      ),
      group,
      h("span.end", close, comma),
    );
    this.makers.set(item, () => this.fillGroup(group, entries, path, isArray, 0));
    this.setOpen(item, key === null || this.left > entries.length);
    return item;
  }

  /**
   * @param {HTMLElement} group
   * @param {[string, Json][]} entries
   * @param {string} path
   * @param {boolean} isArray
   * @param {number} from
   */
  fillGroup(group, entries, path, isArray, from) {
    const rest = entries.length - from - MANY;
    entries
      .slice(from, from + MANY)
      .forEach(([name, value], at) =>
        group.append(
          this.line(
            value,
            isArray ? `${path}[${name}]` : join(path, name),
            isArray ? null : name,
            from + at === entries.length - 1,
          ),
        ),
      );
    if (rest <= 0) return;
    const more = h(
      "div.line.more",
      { role: "treeitem", tabindex: -1 },
      h("span.text", `\u2026 ${rest.toLocaleString()} more`),
    );
    this.makers.set(more, () => {
      more.remove();
      this.fillGroup(group, entries, path, isArray, from + MANY);
    });
    group.append(more);
  }

  /** @param {Json} value @param {string} path */
  scalar(value, path) {
    if (typeof value !== "string") return h(typeof value === "number" ? "span.n" : "span.l", String(value));
    const element = h("bdi.s");
    this.fillString(element, value, path, value.length > LONG * 1.3 ? LONG : value.length);
    return element;
  }

  /** @param {HTMLElement} element @param {string} value @param {string} path @param {number} end */
  fillString(element, value, path, end) {
    const rest = (this.cuts.get(path) ?? value.length) - end;
    const more = h(
      "button.small",
      {
        tabindex: -1,
        onclick: async () => {
          let all = value;
          if (end >= value.length) {
            more.disabled = true;
            all = String(
              (await this.options.whole?.(path).catch(() => null)) ?? `${value}\u2026 (the rest is not available)`,
            );
            this.cuts.delete(path);
          }
          this.fillString(element, all, path, Math.min(all.length, end * 10));
        },
      },
      `\u2026 ${rest.toLocaleString()} more characters`,
    );
    element.replaceChildren(h("span", '"', escaped(value.slice(0, end)), rest > 0 ? more : '"'));
  }

  /** @param {Element} item @param {boolean} isOpen */
  setOpen(item, isOpen) {
    item.setAttribute("aria-expanded", String(isOpen));
    if (isOpen && !item.querySelector(":scope > .children > *")) this.makers.get(item)?.();
  }

  /** Unfold what leads to a place; returns its line, or that of what contains it. @param {string} path */
  reveal(path) {
    let found = this.element.firstElementChild;
    while (found && found.getAttribute("data-path") !== path) {
      if (found.hasAttribute("aria-expanded")) this.setOpen(found, true);
      const children = [...found.querySelectorAll(":scope > .children > .line")];
      const next = children.filter((child) => leadsTo(child.getAttribute("data-path"), path)).pop();
      const more = children.at(-1);
      if (next) found = next;
      else if (more?.classList.contains("more")) this.makers.get(more)?.();
      else break;
    }
    return /** @type {HTMLElement | null} */ (found);
  }

  /** @param {Event} event */
  onClick({ target }) {
    const item = target instanceof Element && !target.closest("button") ? target.closest(".line") : null;
    if (!item || String(getSelection())) return;
    if (/** @type {Element} */ (target).closest(".toggle, .gist"))
      this.setOpen(item, item.getAttribute("aria-expanded") !== "true");
    else this.pick(item);
  }

  /** @param {Element} item */
  pick(item) {
    if (item.classList.contains("more")) this.makers.get(item)?.();
    const path = item.closest(".noted")?.getAttribute("data-path");
    if (typeof path === "string") this.options.pick?.(path);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const { target: item, key } = event;
    if (!(item instanceof HTMLElement) || !item.matches(".line") || event.ctrlKey || event.metaKey || event.altKey)
      return;
    const isOpen = item.getAttribute("aria-expanded");
    const all = [...this.element.querySelectorAll(".line")].filter(
      (each) => each instanceof HTMLElement && each.offsetParent,
    );
    const here = all.indexOf(item);
    const to = {
      ArrowDown: all[here + 1],
      ArrowUp: all[here - 1],
      Home: all[0],
      End: all.at(-1),
      ArrowRight: isOpen === "true" && all[here + 1],
      ArrowLeft: isOpen !== "true" && item.parentElement?.closest(".line"),
    }[key];
    if (key === "ArrowRight" && isOpen === "false") this.setOpen(item, true);
    else if (key === "ArrowLeft" && isOpen === "true") this.setOpen(item, false);
    else if (key === "Enter") this.pick(item);
    else if (to instanceof HTMLElement) {
      item.setAttribute("tabindex", "-1");
      to.setAttribute("tabindex", "0");
      to.focus();
    } else if (!key.startsWith("Arrow")) return;
    event.preventDefault();
    event.stopPropagation();
  }
}

/** The path of a member. @param {string} path @param {string} name */
export function join(path, name) {
  return !path ? name : !name || name.startsWith("[") ? path + name : `${path}.${name}`;
}

/** Whether a place is at or below another one. @param {string | null} above @param {string} path */
export function leadsTo(above, path) {
  return (
    above === "" || path === above || (above !== null && path.startsWith(above) && /[.[]/.test(path[above.length]))
  );
}

/**
 * The content of a string as JSON writes it, but with real line ends, which are easier to read.
 *
 * @param {string} text
 * @returns {Child}
 */
function escaped(text) {
  return text
    .split("\n")
    .map((line, at) => [at > 0 && [h("span.newline", "\\n"), "\n"], wire(JSON.stringify(line).slice(1, -1))]);
}

/** What a folded line shows. @param {boolean} isArray @param {[string, Json][]} entries */
function gist(isArray, entries) {
  if (isArray) return `\u2026 ${entries.length}`;
  const plain = entries.filter(([, value]) => typeof value === "string" || typeof value === "number").slice(0, 2);
  return [
    ...plain.map(([name, value]) => `${oneLine(name, 20)}: ${oneLine(JSON.stringify(value), 32)}`),
    ...(entries.length > plain.length ? ["\u2026"] : []),
  ].join(", ");
}
