/** The page: its frame, its views, and the keys that work everywhere. */
import { endSession, get, openSession, reason } from "./api.js";
import { h, isWriting, put } from "./dom.js";
import { icon, logo } from "./icon.js";
import { setLink, unfollow } from "./live.js";
import { go, href, listHref, parse, VIEWS } from "./route.js";
import { drawn, render, state } from "./state.js";
import { helpDialog } from "./views/help.js";
import { keysView } from "./views/keys.js";
import { listView } from "./views/list.js";
import { overviewView } from "./views/overview.js";
import { playgroundView } from "./views/playground.js";
import { recordingMenu } from "./views/recording.js";
import { requestView } from "./views/request.js";
import { upstreamsView } from "./views/upstreams.js";

const MAKERS = {
  requests: listView,
  overview: overviewView,
  upstreams: upstreamsView,
  keys: keysView,
  playground: playgroundView,
};
const main = h("main", { id: "main", tabindex: -1 });
const nav = h("nav", { "aria-label": "Views" });
const link = h("span.link", { role: "status" });

/** @type {(View & {focusFilter?: () => void}) | undefined} */
let view;
/** @type {View | undefined} the request beside the list */
let request;
let shown = "";
let chord = 0; // when `g` was pressed

function build() {
  const recording = recordingMenu();
  const skip = (/** @type {Event} */ event) => {
    event.preventDefault();
    main.focus();
  };
  put(
    document.body,
    h("a.skip", { href: "#main", onclick: skip }, "Skip to content"),
    h(
      "header.top",
      h("a.brand", { href: "#/requests", "aria-label": "Dragoman" }, logo(), h("span", "Dragoman")),
      nav,
      h(
        "div.status",
        recording.button,
        link,
        h("button.plain", { "aria-label": "Keys and help", title: "Keys and help (?)", onclick: help }, "?"),
      ),
    ),
    main,
    recording.element,
  );
}

function help() {
  helpDialog(() => void endSession());
}

function drawLink() {
  const { state: gateway, url } = state.server?.gateway ?? {};
  const [word, tone, title] =
    state.link === "lost"
      ? ["reconnecting", "trouble", "The inspector does not answer; trying again"]
      : gateway === "gone"
        ? ["gateway is gone", "trouble", "The gateway does not run; this page waits for it"]
        : gateway
          ? ["live", "well", url ?? ""]
          : ["connecting", "", ""];
  if (link.textContent !== word) put(link, h("span.dot"), h("span", word));
  link.className = `link ${tone}`;
  link.title = title ?? "";
}

function showRoute() {
  const route = (state.route = parse(location.hash));
  if (state.session !== "open") return;
  put(
    nav,
    VIEWS.map((each) =>
      h(
        "a",
        {
          href: each === "requests" ? listHref(route) : href([each]),
          "aria-current": each === route.view && "page",
          title: `g ${each[0]}`,
        },
        titleOf(each),
      ),
    ),
  );
  document.title = `${route.id || titleOf(route.view)} \u00b7 Dragoman`;
  if (route.view !== shown) {
    closeViews();
    shown = route.view;
    view = MAKERS[route.view]();
    put(main, view.element);
    main.className = route.view;
    scrollTo(0, 0);
  } else {
    view?.update?.();
  }
  main.classList.toggle("with-request", route.id !== "");
  if (route.id && request) request.update?.();
  else if (route.id) main.append((request = requestView()).element);
  else closeRequest();
  render("route");
}

/** @param {string} each */
function titleOf(each) {
  return each.charAt(0).toUpperCase() + each.slice(1);
}

function closeRequest() {
  request?.close?.();
  request?.element.remove();
  request = undefined;
}

function closeViews() {
  closeRequest();
  view?.close?.();
  view = undefined;
  shown = "";
  unfollow();
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open], :popover-open")) return;
  if (key === "Escape") {
    if (isWriting(event) && target instanceof HTMLElement) target.blur();
    else if (state.route.id) go(listHref(state.route));
    return;
  }
  if (isWriting(event) || !state.singleKeys || state.session !== "open") return;
  const after = performance.now() - chord < 1500 && VIEWS.find((each) => each[0] === key);
  chord = key === "g" ? performance.now() : 0;
  if (after) go(after === "requests" ? listHref(state.route) : href([after]));
  else if (key === "?") help();
  else if (key === "/" && view?.focusFilter) view.focusFilter();
  else if (key !== "g" && !request?.onKey?.(event) && !view?.onKey?.(event)) return;
  event.preventDefault();
}

/** Show how to get a session. @param {string} problem */
function showClosed(problem) {
  closeViews();
  put(nav);
  main.className = "closed";
  put(
    main,
    h(
      "div.empty",
      icon("key", "big"),
      h("h1", "Open this page with a link"),
      h("p", "The command below prints a link that opens it, once, within ten minutes."),
      h("pre.wire", "dragoman inspect"),
      problem && h("p.mistake", { role: "alert" }, problem),
    ),
  );
}

async function start() {
  build();
  drawn("status", drawLink);
  const problem = await openSession().then(() => "", reason);
  for (let wait = 250; state.session === "unknown"; wait = Math.min(2 * wait, 4000)) {
    try {
      state.server = await get("state");
      state.session = "open";
    } catch {
      setLink("lost");
      if (state.session === "unknown") await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }
  drawn("frame", () => (state.session === "open" ? showRoute() : showClosed(problem)));
  addEventListener("hashchange", () => (location.hash.startsWith("#link=") ? location.reload() : showRoute()));
  document.addEventListener("keydown", onKey);
  document.documentElement.dataset.ready = "1";
  render("frame", "status");
}

void start();
