/** The field of the filter: completes, and shows a mistake at its place. */
import { get, isAborted } from "../api.js";
import { h, later, newId, put } from "../dom.js";
import { icon } from "../icon.js";
import { go, href } from "../route.js";
import { state } from "../state.js";
import { oneLine } from "../text.js";

export function filterField() {
  const [listId, errorId] = [newId(), newId()];
  const checkSoon = later(120, () => void check());
  const ghost = h("div.ghost", { "aria-hidden": "true" });
  const input = h("input", {
    type: "text",
    role: "combobox",
    "aria-label": "Filter",
    "aria-expanded": "false",
    "aria-controls": listId,
    "aria-autocomplete": "list",
    "aria-describedby": errorId,
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
    placeholder: "Filter: upstream:kiro status:>=400 tool:Bash",
    oninput: onInput,
    onkeydown: onKey,
    onblur: () => offer([]),
    onscroll: align,
    onfocus: check,
    onclick: check,
  });
  const list = h("ul.completions", { id: listId, role: "listbox", "aria-label": "Completions", hidden: true });
  const error = h("p.mistake", { id: errorId, role: "alert", hidden: true });
  const clear = h(
    "button.clear",
    { hidden: true, "aria-label": "Clear the filter", onclick: () => write("", 0) },
    icon("cross"),
  );
  const element = h("div.filter", icon("search"), h("div.field", ghost, input), clear, list, error);
  /** @type {Completion[]} */
  let offers = [];
  let chosen = -1;
  let applied = "";
  let abort = new AbortController();

  function onInput() {
    clear.hidden = !input.value;
    mark(null);
    checkSoon();
  }

  /** Ask whether the text is a filter, and how it could go on; apply it if it is one. */
  async function check() {
    abort.abort();
    abort = new AbortController();
    const text = input.value;
    try {
      // The server counts characters, not halves of them.
      const found = /** @type {FilterCheck} */ (
        await get("filter", { text, at: [...text.slice(0, input.selectionStart ?? text.length)].length }, abort.signal)
      );
      mark(found.error);
      if (document.activeElement === input) offer(found.completions.slice(0, 12));
      if (!found.error) apply(text.trim());
    } catch (problem) {
      if (!isAborted(problem)) offer([]); // one can still write
    }
  }

  /** @param {string} filter */
  function apply(filter) {
    if (filter === applied) return;
    const isFirst = !applied || !filter; // going back leads from a filter to none, not through each character
    applied = filter;
    const { id, tab, params } = state.route;
    go(href(id ? ["requests", id, tab] : ["requests"], { ...Object.fromEntries(params), filter }), !isFirst);
  }

  /** @param {FilterCheck["error"]} problem */
  function mark(problem) {
    error.hidden = !problem;
    input.setAttribute("aria-invalid", String(problem !== null));
    const points = [...input.value];
    const { at = 0, length = 0, message = "" } = problem ?? {};
    const end = at + Math.max(1, length);
    put(
      ghost,
      problem && [
        points.slice(0, at).join(""),
        h("mark", points.slice(at, end).join("") || " "),
        points.slice(end).join(""),
      ],
    );
    put(error, icon("warning"), oneLine(message, 300));
    align();
  }

  function align() {
    ghost.scrollLeft = input.scrollLeft;
  }

  /** @param {Completion[]} found */
  function offer(found) {
    offers = found;
    list.hidden = !found.length;
    input.setAttribute("aria-expanded", String(found.length > 0));
    put(
      list,
      found.map((each, at) =>
        h(
          "li",
          {
            role: "option",
            id: `${listId}-${at}`,
            onmousedown: (event) => {
              event.preventDefault();
              take(each);
            },
          },
          h("span.insert", oneLine(each.insert, 80)),
          h("span.soft", oneLine(each.detail, 120)),
        ),
      ),
    );
    choose(-1);
  }

  /** @param {number} at */
  function choose(at) {
    chosen = at >= offers.length ? -1 : at;
    [...list.children].forEach((option, each) => option.setAttribute("aria-selected", String(each === chosen)));
    const option = list.children[chosen];
    option?.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", option?.id ?? "");
  }

  /** @param {Completion} completion */
  function take({ insert, from, to }) {
    const points = [...input.value];
    const start = points.slice(0, from).join("") + insert;
    write(start + points.slice(to).join(""), start.length);
  }

  /** @param {string} text @param {number} at */
  function write(text, at) {
    input.value = text;
    input.setSelectionRange(at, at);
    input.focus();
    onInput();
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    const { key } = event;
    const offered = offers[chosen];
    if (key === "ArrowDown" && offers.length) choose(chosen + 1);
    else if (key === "ArrowUp" && offers.length) choose(chosen < 0 ? offers.length - 1 : chosen - 1);
    else if ((key === "Enter" || key === "Tab") && offered) take(offered);
    else if (key === "Enter" || (key === "Escape" && offers.length)) offer([]);
    else if (key === "Escape" && input.value) write("", 0);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  return {
    element,
    focus: () => input.select(),
    /** @param {string} filter */
    show(filter) {
      if (filter === applied) return; // it came from here, and one may have gone on writing
      applied = filter;
      input.value = filter;
      clear.hidden = !filter;
      void check();
    },
  };
}
