/** The health of the upstreams, their credentials and cooldowns. */
import { get, post } from "../api.js";
import { h, put } from "../dom.js";
import { ago, count, moment, plural, seconds, time } from "../format.js";
import { icon } from "../icon.js";
import { fill, nothing, pair } from "../part.js";
import { href } from "../route.js";
import { state } from "../state.js";
import { name, wire } from "../text.js";
import { act, notify } from "./notice.js";

/** @typedef {{upstreams: Upstream[]}} Answer */

const FRESH = 3000; // milliseconds
/** @type {{[health: string]: [tone: string, word: string]}} */
const HEALTH = {
  ok: ["well", "ok"],
  unused: ["soft", "not used yet"],
  cooling: ["warn", "cooling down"],
  failing: ["trouble", "failing"],
};

export function upstreamsView() {
  const list = h("div.upstreamlist");
  const clear = h("button", { hidden: true, onclick: () => end("") }, "End all cooldowns");
  const element = h(
    "section.upstreams",
    { "aria-label": "Upstreams" },
    h("div.bar", h("h1", "Upstreams"), h("div.actions", clear)),
    list,
  );

  /** @param {Answer} answer */
  function draw({ upstreams }) {
    clear.hidden = !upstreams.some((each) => each.cooldowns.length);
    return upstreams.length
      ? upstreams.map((each) => card(each, () => end(each.name)))
      : nothing(
          "No upstream is configured",
          "dragoman init finds keys and logins on this machine, and writes a configuration.",
        );
  }

  /** @param {string} upstream empty: all */
  function end(upstream) {
    return act(async () => {
      const { cleared } = await post("cooldowns/clear", { upstream });
      notify(`${plural(cleared, "cooldown")} ended`);
      put(list, draw(await get("upstreams")));
    });
  }

  const timer = setInterval(async () => {
    const isUsed = list.contains(document.activeElement) || list.querySelector("details[open]");
    if (!document.hidden && state.link === "live" && !isUsed)
      await get("upstreams").then(
        (found) => put(list, draw(found)),
        () => undefined,
      );
  }, FRESH);
  void fill(list, "upstreams", {}, draw);
  return { element, close: () => clearInterval(timer) };
}

/** @param {Upstream} upstream @param {() => void} end */
function card(upstream, end) {
  const { cooldowns, credentials, last_ok_at: ok, last_error_at: failed } = upstream;
  const [tone, word] = HEALTH[upstream.health] ?? ["", upstream.health];
  return h(
    "article.card.upstreamcard",
    h(
      "header",
      h("h2", name(upstream.name)),
      h("span", { class: `pill ${tone}` }, word),
      h("span.soft", upstream.dialect),
      h("div.actions", h("a", { href: href(["requests"], { filter: `upstream:${upstream.name}` }) }, "Its requests")),
    ),
    h(
      "dl.facts",
      pair("Running", count(upstream.active)),
      pair("Waiting", count(upstream.waiting)),
      pair("Last answer", ago(ok), ok ? moment(ok) : null),
      pair("Failures in a row", count(upstream.failures)),
    ),
    upstream.last_error &&
      h(
        "p.why",
        icon("failed"),
        h("span", !!failed && h("span.soft", { title: moment(failed) }, `${ago(failed)}: `), wire(upstream.last_error)),
      ),
    cooldowns.length > 0 &&
      h(
        "section.cooldowns",
        h("h3", "Cooldowns", h("button.small", { onclick: end }, "End them")),
        h("ul", cooldowns.map(cooldownLine)),
      ),
    credentials.length > 0 &&
      h(
        "details",
        h("summary", plural(credentials.length, "credential")),
        h("ul.credentials", credentials.map(credential)),
      ),
  );
}

/** @param {Cooldown} each */
export function cooldownLine(each) {
  const now = Date.now() / 1000;
  const left = each.until ? `for ${seconds(each.until - now)}, until ${time(each.until)}` : "until a request succeeds";
  const probe =
    each.state === "probing"
      ? ", a test request is running"
      : each.next_try
        ? `, next test request in ${seconds(each.next_try - now)}`
        : "";
  return h(
    "li",
    each.credential && [name(each.credential), ", "],
    name(each.models || "all models"),
    h("strong", ` ${left}`),
    probe,
    h("p", h("code", each.kind), " ", wire(each.why ?? "")),
  );
}

/** @param {Upstream["credentials"][number]} each */
function credential({ name: label, source, state: word, expires_at: end, problem }) {
  const left = end ? end - Date.now() / 1000 : 0;
  return h(
    "li",
    icon("key"),
    " ",
    name(label),
    h("span.soft", " ", name(source ?? "")),
    word && h("span", { class: word === "ok" ? "well" : "warn" }, ` ${word}`),
    !!end &&
      h(
        "span.soft",
        left > 0 ? `, expires in ${seconds(left)}` : `, expired ${seconds(-left)} ago; renewed at the next request`,
      ),
    problem && h("p.trouble", wire(problem)),
  );
}
