/** Messages, dialogs, and buttons that copy, save, and ask twice. */
import { open, reason } from "../api.js";
import { h, newId, put } from "../dom.js";
import { icon } from "../icon.js";

/** @param {string} message @param {"" | "trouble"} [tone] */
export function notify(message, tone = "") {
  let place = document.querySelector(".notices");
  if (!place) {
    place = h("div.notices", { role: "status" });
    document.body.append(place);
  }
  const notice = h("p", { class: tone }, icon(tone ? "warning" : "check"), message);
  place.append(notice);
  setTimeout(() => notice.remove(), tone ? 10_000 : 5000);
}

/** Do what was asked for; an error becomes a message. @param {() => Promise<unknown>} work */
export async function act(work) {
  try {
    await work();
  } catch (error) {
    notify(reason(error), "trouble");
  }
}

/** @param {string} label @param {() => string | Promise<string>} text */
export function copyButton(label, text) {
  return h(
    "button.small",
    {
      onclick: () =>
        act(async () => {
          await navigator.clipboard.writeText(await text());
          notify("Copied");
        }),
    },
    icon("copy"),
    label,
  );
}

/**
 * A button that fetches something and saves it.
 *
 * @param {string} label
 * @param {() => [path: string, query: Params, name: string]} what
 */
export function saveButton(label, what) {
  return h(
    "button.small",
    {
      onclick: () =>
        act(async () => {
          const [path, query, name] = what();
          const url = URL.createObjectURL(await (await open(path, query)).blob());
          h("a", { href: url, download: name }).click();
          setTimeout(() => URL.revokeObjectURL(url), 10_000);
          notify(`Saved as ${name}`);
        }),
    },
    icon("save"),
    label,
  );
}

/** @param {string} label @param {() => Promise<unknown>} work @param {string} [spec] */
export function sureButton(label, work, spec = "danger") {
  const button = h(
    "button",
    {
      class: spec,
      onclick: () => {
        if (button.dataset.asked) void act(work);
        button.dataset.asked = "1";
        button.textContent = `Press again: ${label.toLowerCase()}`;
      },
    },
    label,
  );
  return button;
}

/**
 * Open a dialog. With `send` it is a form, whose error stands above its buttons.
 *
 * @param {Child} title
 * @param {Child} content
 * @param {string} action the word on its button
 * @param {() => Promise<void>} [send]
 * @param {boolean} [isStrict] only its button closes it
 */
export function dialog(title, content, action, send, isStrict = false) {
  const id = newId();
  const problem = h("p.mistake", { role: "alert", hidden: true });
  const button = h("button.primary", { type: "submit" }, action);
  const onsubmit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await send?.();
      element.close();
    } catch (error) {
      problem.hidden = false;
      put(problem, icon("warning"), reason(error));
    }
    button.disabled = false;
  };
  /** @type {HTMLDialogElement} */
  const element = h(
    "dialog",
    { "aria-labelledby": id, onclose: () => element.remove(), oncancel: (event) => isStrict && event.preventDefault() },
    h(
      "form.sheet",
      { novalidate: true, onsubmit },
      h("h2", { id }, title),
      content,
      problem,
      h("div.actions", send && h("button", { onclick: () => element.close() }, "Cancel"), button),
    ),
  );
  document.body.append(element);
  element.showModal();
}
