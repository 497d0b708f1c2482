/** The dialogs of keys: create, rotate, set limits, and the secret that is shown once. */
import { post } from "../api.js";
import { h, newId, textField } from "../dom.js";
import { icon } from "../icon.js";
import { name } from "../text.js";
import { copyButton, dialog, notify } from "./notice.js";

/** @param {string} title @param {HTMLElement} input @param {string} hint */
function field(title, input, hint) {
  const [id, hintId] = [newId(), newId()];
  input.id = id;
  input.setAttribute("aria-describedby", hintId);
  return h("div.fieldrow", h("label", { for: id }, title), input, h("p.soft", { id: hintId }, hint));
}

/** @param {string} text */
function list(text) {
  return text.split(/[\s,]+/).filter(Boolean);
}

/** @param {(key: Key) => void} done */
export function createDialog(done) {
  const [title, owner, models, upstreams, expires, limits] = ["", "", "", "", "30d", ""].map((value) =>
    textField(value),
  );
  dialog(
    "New key",
    [
      field("Name", title, "For lists and messages"),
      field("Owner", owner, "A person or team; its keys may share limits"),
      field("Models", models, "Patterns such as claude-*, separated by spaces; empty: all"),
      field("Upstreams", upstreams, "Names, separated by spaces; empty: all"),
      field("Expires", expires, "30d, or a date; empty: never"),
      field("Limits", limits, "For example requests/minute=60 tokens/day=1M; empty: none"),
    ],
    "Create the key",
    async () =>
      done(
        await post("keys/create", {
          name: title.value.trim(),
          owner: owner.value.trim(),
          models: list(models.value),
          upstreams: list(upstreams.value),
          expires: expires.value.trim(),
          limits: list(limits.value),
        }),
      ),
  );
  title.focus();
}

/** @param {Key} key @param {(key: Key) => void} done */
export function rotateDialog(key, done) {
  const grace = textField("24h");
  dialog(
    ["Rotate ", name(key.name)],
    [
      h("p", "The old secret works until the grace has passed."),
      field("Grace", grace, "24h, 30m; 0 ends the old secret at once"),
    ],
    "Make a new secret",
    async () => done(await post("keys/rotate", { key: key.id, grace: grace.value.trim() })),
  );
}

/**
 * @param {string} scope of a key; or empty: a field asks for it
 * @param {string} title
 * @param {Limit[]} limits
 * @param {() => void} done
 */
export function limitsDialog(scope, title, limits, done) {
  const text = h("textarea.wire", { rows: 5, spellcheck: "false", autocomplete: "off" });
  text.value = limits.map((limit) => limit.text).join("\n");
  const target = textField("all");
  dialog(
    ["Limits of ", name(title)],
    [
      !scope && field("For", target, "all, or owner:NAME"),
      field("Limits", text, "One a line, for example tokens/day=1M. They replace those that are set now."),
    ],
    "Set the limits",
    async () => {
      await post("keys/limits", { scope: scope || target.value.trim(), limits: list(text.value) });
      notify("The limits are set");
      done();
    },
  );
}

/** @param {Key} key */
export function secretDialog({ name: title, key, aws }) {
  const line = (/** @type {string} */ label, /** @type {string} */ secret) =>
    h(
      "div.secret",
      h("span", label),
      h("code", secret),
      copyButton("Copy", () => secret),
    );
  dialog(
    ["The key ", name(title)],
    [
      h("p.hint", icon("warning"), "It is not stored, and cannot be shown again."),
      key && line("Key", key),
      aws && [
        h("p.soft", "For AWS clients, which sign their requests:"),
        line("AWS_ACCESS_KEY_ID", aws.access_key_id),
        line("AWS_SECRET_ACCESS_KEY", aws.secret_access_key),
      ],
    ],
    "I have stored it",
    undefined,
    true,
  );
}
