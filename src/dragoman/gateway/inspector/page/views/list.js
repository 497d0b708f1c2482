/** The list of requests: newest first, live. Only visible rows exist. */
import { h, isWriting, put } from "../dom.js";
import { count, plural } from "../format.js";
import { icon } from "../icon.js";
import { go, href, requestHref } from "../route.js";
import { indexOf, loadRows, need, rowAt, rowCount, rows } from "../rows.js";
import { drawn, state } from "../state.js";
import { VirtualList } from "../virtual.js";
import { filterField } from "./filter.js";
import { drawRow, rowKey, titleRow } from "./row.js";

export function listView() {
  const body = h("div.rows", { role: "rowgroup" });
  const grid = h(
    "div.grid",
    { role: "grid", "aria-label": "Requests", onkeydown: onArrow, onfocusin: onFocus },
    titleRow(),
    body,
  );
  const empty = h("div.empty", { hidden: true });
  const counts = h("p.counts", { role: "status" });
  const fresh = h("button.fresh", {
    hidden: true,
    onclick: () => {
      virtual.port().scroller.scrollTop = 0;
    },
  });
  const field = filterField();
  const element = h(
    "section.list",
    { "aria-label": "List of requests" },
    h("h1.hidden", "Requests"),
    h("div.listhead", field.element, counts),
    fresh,
    h("div.listbody", grid, empty),
  );
  let current = -1; // the row that the keyboard is at
  let missed = 0; // rows that arrived above what is visible
  const virtual = new VirtualList(body, {
    count: rowCount,
    key: (index) => rowKey(rowAt(index), index),
    draw: (index) => drawRow(rowAt(index)),
    seen: (from, to) => {
      need(from, to);
      rove();
      if (!from) missed = 0;
      fresh.hidden = !missed;
      put(fresh, icon("up"), plural(missed, "new request"));
    },
  });

  /** One row can be reached with Tab: the current one, or the first that is visible. */
  function rove() {
    for (const link of body.querySelectorAll("a[tabindex='0']")) link.setAttribute("tabindex", "-1");
    linkAt(current >= virtual.from && current < virtual.to ? current : virtual.from)?.setAttribute("tabindex", "0");
  }

  /** @param {number} index */
  function linkAt(index) {
    return virtual.element(index)?.querySelector("a");
  }

  function draw() {
    const hadFocus = body.contains(document.activeElement);
    if (rows.added) virtual.shift(rows.added);
    if (current >= 0) current += rows.added;
    missed += rows.added;
    rows.added = 0;
    virtual.draw();
    if (hadFocus && !body.contains(document.activeElement)) linkAt(current)?.focus({ preventScroll: true });
    const number = rowCount();
    const running = state.running.length + state.moreRunning;
    grid.setAttribute("aria-rowcount", String(number + 1));
    grid.hidden = !number;
    empty.hidden = number > 0 || (!rows.isLoaded && !rows.problem);
    if (!empty.hidden) put(empty, rows.problem ? failure() : rows.filter && rows.total ? noMatch() : noRequests());
    put(
      counts,
      rows.isLoaded &&
        (rows.filter
          ? `${count(rows.fresh.length + rows.matched)} of ${count(rows.total)}`
          : plural(rows.total, "request")),
      running > 0 && h("span.runs", icon("running"), `${count(running)} running`),
    );
  }

  /** Move the keyboard to a row; beside an open request, open it. @param {number} index */
  function moveTo(index) {
    current = Math.max(0, Math.min(rowCount() - 1, index));
    virtual.reveal(current);
    rove();
    linkAt(current)?.focus({ preventScroll: true });
    const row = rowAt(current);
    if (state.route.id && row && element.offsetParent) go(requestHref(state.route, row.id, state.route.tab), true);
  }

  /** @param {KeyboardEvent} event */
  function onArrow(event) {
    const page = Math.max(1, virtual.to - virtual.from - 14);
    const to = {
      ArrowDown: current + 1,
      ArrowUp: current - 1,
      PageDown: current + page,
      PageUp: current - page,
      Home: 0,
      End: Infinity,
    }[event.key];
    if (to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    moveTo(to);
  }

  /** @param {FocusEvent} event */
  function onFocus({ target }) {
    const id = target instanceof Element && target.closest(".row")?.getAttribute("data-id");
    if (id) current = indexOf(id);
    rove();
  }

  function onRoute() {
    const filter = state.route.params.get("filter") ?? "";
    if (state.route.view === "requests" && filter !== rows.filter) void loadRows(filter);
    field.show(filter);
    if (state.route.id) current = indexOf(state.route.id);
    draw();
  }

  const stops = [drawn("list", draw), drawn("route", onRoute)];
  const filter = state.route.params.get("filter") ?? "";
  void loadRows(filter);
  field.show(filter);

  return {
    element,
    focusFilter: field.focus,
    /** @param {KeyboardEvent} event */
    onKey(event) {
      if (isWriting(event) || !"jk".includes(event.key)) return false;
      moveTo((current < 0 ? indexOf(state.route.id) : current) + (event.key === "j" ? 1 : -1));
      return true;
    },
    close() {
      virtual.close();
      for (const stop of stops) stop();
    },
  };
}

function failure() {
  return [
    icon("warning", "big"),
    h("h2", rows.isWrong ? "This filter is not valid" : "The list cannot be loaded"),
    h("p", rows.problem),
    rows.isWrong ? showAll() : h("p.soft", "Trying again\u2026"),
  ];
}

function noMatch() {
  return [
    icon("search", "big"),
    h("h2", "No request matches this filter"),
    h("p", `${plural(rows.total, "request")} in all. New ones appear here when they match.`),
    showAll(),
  ];
}

function noRequests() {
  const url = state.server?.gateway.url ?? "http://127.0.0.1:8787";
  return [
    icon("running", "big"),
    h("h2", "No requests yet"),
    h("p", "Point a client at the gateway; its requests appear here by themselves."),
    h("pre.wire", `ANTHROPIC_BASE_URL=${url} claude\nOPENAI_BASE_URL=${url}/v1 your-program\ndragoman demo`),
    state.server?.recording.level !== "full" &&
      h("p", "To see bodies and streams, ", h("strong", "turn recording on first"), ": the button at the top right."),
  ];
}

function showAll() {
  return h("a.button", { href: href(["requests"]) }, "Show all requests");
}
