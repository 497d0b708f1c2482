/** Client keys and limits: what `dragoman keys` does, with the same rules. */
import { ApiError, get, post, reason } from "../api.js";
import { h, put } from "../dom.js";
import { ago, count, dollars, moment, percent, seconds, short } from "../format.js";
import { icon } from "../icon.js";
import { failure, nothing } from "../part.js";
import { setParams } from "../route.js";
import { state } from "../state.js";
import { name } from "../text.js";
import { createDialog, limitsDialog, rotateDialog, secretDialog } from "./key_dialogs.js";
import { notify, sureButton } from "./notice.js";

const NEAR = 0.8; // of a limit; from then on it is marked

export function keysView() {
  const list = h("div.keylist");
  const all = h("input", {
    type: "checkbox",
    onchange: () => setParams(state.route, { all: all.checked ? "1" : null }),
  });
  const create = h("button.primary", { onclick: () => createDialog(show) }, icon("added"), "New key");
  const element = h(
    "section.keysview",
    { "aria-label": "Keys and limits" },
    h(
      "div.bar",
      h("h1", "Keys and limits"),
      h("div.actions", h("label.check", all, "Expired and revoked, too"), create),
    ),
    list,
  );

  async function load() {
    all.checked = state.route.params.get("all") === "1";
    try {
      const { keys, shared } = /** @type {{keys: Key[], shared: Limit[]}} */ (
        await get("keys", { all: all.checked ? 1 : null })
      );
      create.disabled = false;
      const own = shared.filter((limit) => limit.scope === "all");
      put(
        list,
        keys.length
          ? h("ul.keys", keys.map(card))
          : nothing("No keys yet", "With a key for each client you see and limit what it uses."),
        h(
          "section.card",
          h(
            "h2",
            "Shared limits",
            h("button.small", { onclick: () => limitsDialog("", "several keys", own, load) }, "Change"),
          ),
          shared.length
            ? limits(shared, true)
            : h("p.soft", "None. All keys, or those of an owner, can share a limit."),
        ),
      );
    } catch (error) {
      create.disabled = error instanceof ApiError && error.status === 409;
      put(list, create.disabled ? nothing("There is no store of accounts", reason(error)) : failure(error, load));
    }
  }

  /** @param {Key} key */
  function show(key) {
    secretDialog(key);
    void load();
  }

  /** @param {Key} key */
  function card(key) {
    const isValid = key.state === "valid";
    const names = (/** @type {string} */ what, /** @type {string[]} */ list) =>
      list.length ? [`${what} `, list.map((each, at) => [at > 0 && ", ", name(each)])] : `all ${what}`;
    const revoke = async () => {
      await post("keys/revoke", { key: key.id });
      notify(`The key ${key.name} is revoked`);
      await load();
    };
    return h(
      "li",
      { class: `card key ${key.state}` },
      h(
        "header",
        h("h2", name(key.name)),
        h("span", { class: `pill ${isValid ? "well" : "trouble"}` }, key.state),
        h("code.soft", key.id),
        key.owner && h("span", "of ", name(key.owner)),
        isValid &&
          h(
            "div.actions",
            h(
              "button.small",
              {
                onclick: () =>
                  limitsDialog(
                    key.id,
                    key.name,
                    key.limits.filter((limit) => limit.scope.startsWith("key:")),
                    load,
                  ),
              },
              "Limits",
            ),
            h("button.small", { onclick: () => rotateDialog(key, show) }, "Rotate"),
            sureButton("Revoke", revoke, "small danger"),
          ),
      ),
      h(
        "p.soft",
        names("models", key.models),
        "; ",
        names("upstreams", key.upstreams),
        !!key.created_at && h("span", { title: moment(key.created_at) }, `; created ${ago(key.created_at)}`),
        key.revoked_at ? `; revoked ${ago(key.revoked_at)}` : expiry(key.expires_at),
      ),
      key.limits.length ? limits(key.limits, false) : h("p.soft", "No limits"),
    );
  }

  void load();
  return { element, update: load };
}

/** @param {Maybe} end */
function expiry(end) {
  if (!end) return "; never expires";
  const left = end - Date.now() / 1000;
  return h("span", { title: moment(end) }, left > 0 ? `; expires in ${seconds(left)}` : `; expired ${ago(end)}`);
}

/** @param {Limit[]} list @param {boolean} isShared */
function limits(list, isShared) {
  return h(
    "ul.limits",
    list.map(({ scope, resource, span, amount: most, used, held }) => {
      const amount = (/** @type {number} */ value) =>
        /dollar|cost|money/.test(resource) ? dollars(value) : value >= 100_000 ? short(value) : count(value);
      const share = most ? used / most : 1;
      const words = `${amount(used)} of ${amount(most)}`;
      return h(
        "li",
        { class: share >= 1 ? "trouble" : share >= NEAR ? "warn" : null },
        h(
          "span",
          (isShared || !scope.startsWith("key:")) && [name(scope), " "],
          resource,
          span === "now" ? " at once" : ` a ${span}`,
        ),
        h("meter", { max: most || 1, value: Math.min(used, most || 1), "aria-label": `${resource}: ${words}` }),
        h(
          "span.used",
          share >= NEAR && icon("warning"),
          words,
          h("span.soft", ` ${percent(share)}`),
          held > 0 && h("span.soft", { title: "Reserved by requests that run" }, `, ${amount(held)} reserved`),
        ),
      );
    }),
  );
}
