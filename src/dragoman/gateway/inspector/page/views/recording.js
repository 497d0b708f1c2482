/** The sign that shows what is recorded, and the menu to change it. */
import { post } from "../api.js";
import { h, put } from "../dom.js";
import { bytes, count, moment, percent, plural } from "../format.js";
import { pair } from "../part.js";
import { drawn, render, state } from "../state.js";
import { act, notify, sureButton } from "./notice.js";

/** @type {[level: Level, sign: string, title: string, detail: string][]} */
const LEVELS = [
  ["off", "not recording", "Off", "The gateway remembers the last 1,000 requests, without content."],
  ["meta", "recording times", "Times and sizes", "Attempts, headers, and when each frame came. No content."],
  ["full", "recording bodies", "Bodies", "Also requests, responses and streams, with secrets masked."],
];

export function recordingMenu() {
  const button = h("button.recording", { popovertarget: "recording-menu", hidden: true });
  const element = h("div.menu", {
    id: "recording-menu",
    popover: "auto",
    role: "dialog",
    "aria-label": "Recording",
    ontoggle: () => draw(),
  });

  function draw() {
    const { recording, gateway } = state.server ?? {};
    if (!recording) return;
    const { level } = recording;
    button.hidden = false;
    if (button.dataset.level !== level) put(button, h("span.dot"), LEVELS.find(([each]) => each === level)?.[1]);
    button.dataset.level = level;
    if (!element.matches(":popover-open")) return;
    const isGone = gateway?.state !== "running";
    put(
      element,
      h(
        "fieldset",
        h("legend", "Record"),
        LEVELS.map(([each, , title, detail]) =>
          h(
            "label.choice",
            h("input", {
              type: "radio",
              name: "level",
              checked: each === level,
              disabled: isGone,
              onchange: () => act(() => setLevel(each)),
            }),
            h("span", h("strong", title), h("span.soft", detail)),
          ),
        ),
      ),
      h(
        "p.soft",
        isGone
          ? "The gateway does not run."
          : [
              "Until the gateway ends. To keep it, set ",
              h("code", "record"),
              ` in the configuration (now: ${recording.configured}).`,
            ],
      ),
      h(
        "dl.pairs",
        pair(
          "Kept",
          recording.requests
            ? `${plural(recording.requests, "request")}, ${bytes(recording.bytes)} (${percent(recording.bytes / recording.most_bytes)} of ${bytes(recording.most_bytes)})`
            : "nothing",
        ),
        recording.oldest && pair("Since", moment(recording.oldest)),
        pair("For", plural(recording.hours, "hour")),
        !!recording.dropped && pair("Left out", `${count(recording.dropped)}: the disk was too slow`),
      ),
      recording.requests
        ? sureButton("Delete all recordings", async () => {
            const { requests } = await post("recordings/purge", {});
            notify(`${plural(requests, "recording")} deleted`);
            element.hidePopover();
          })
        : "",
    );
  }

  drawn("status", draw);
  return { button, element };
}

/** @param {Level} level */
async function setLevel(level) {
  const recording = await post("recording", { level });
  if (state.server) state.server.recording = recording;
  render("status");
}
