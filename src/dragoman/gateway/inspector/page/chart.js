/** Charts over time, each with its numbers as a table. */
import { after, clockStep, niceStep, place } from "./axis.js";
import { h, put, s } from "./dom.js";
import { moment, tick } from "./format.js";
import { table } from "./part.js";
import { name, oneLine } from "./text.js";

const [HIGH, LEFT, RIGHT, TOP, FOOT] = [156, 52, 8, 10, 20];

/** @param {ChartOptions} options */
export function chart({ title, isLines, times, step, series, format, total, hasLegend }) {
  const scale = { from: times[0], to: times[times.length - 1] + step, left: LEFT, right: 300 };
  const svg = s("svg.chart", {
    role: "img",
    "aria-label": `${title}. The table has the numbers.`,
    height: HIGH,
    onpointermove: point,
    onpointerleave: () => show(-1),
  });
  const cursor = s("path.cursor");
  const readout = h("p.readout", { "aria-hidden": "true" });
  const body = h("div");
  /** @type {HTMLDetailsElement} */
  const details = h("details", { ontoggle: () => details.open && put(body, numbers()) }, h("summary", "Table"), body);
  const element = h(
    "section.card.chartcard",
    { role: "group", "aria-label": title },
    h("header", h("h2", title), h("strong.total", total)),
    hasLegend && legend(series),
    svg,
    readout,
    details,
  );
  const sizes = new ResizeObserver(draw);
  sizes.observe(element);

  function draw() {
    const width = Math.max(200, svg.clientWidth);
    scale.right = width - RIGHT;
    const sums = times.map((_, at) =>
      series.map(({ values }) => values[at] ?? 0).reduce((one, two) => (isLines ? Math.max(one, two) : one + two), 0),
    );
    const unit = niceStep(Math.max(...sums) / 3 || 1);
    const top = Math.max(1, Math.ceil(Math.max(...sums) / unit)) * unit;
    const y = (/** @type {number} */ value) =>
      Math.round((HIGH - FOOT - (value / top) * (HIGH - FOOT - TOP)) * 10) / 10;
    const parts = [];
    for (let value = 0; value <= top * 1.001; value += unit)
      parts.push(
        s("path.gridline", { d: `M${LEFT} ${Math.round(y(value)) + 0.5}H${scale.right}` }),
        s("text.axis", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)),
      );
    const span = scale.to - scale.from;
    const every = clockStep((span * 64) / (scale.right - LEFT));
    const zone = new Date(scale.from * 1000).getTimezoneOffset() * 60;
    for (let t = Math.ceil((scale.from - zone) / every) * every + zone; place(scale, t) < scale.right - 14; t += every)
      parts.push(
        s(
          "text.axis",
          { x: Math.max(place(scale, t), LEFT + 14), y: HIGH - 5, "text-anchor": "middle" },
          tick(t, span),
        ),
      );
    svg.setAttribute("viewBox", `0 0 ${width} ${HIGH}`);
    const under = times.map(() => 0);
    svg.replaceChildren(
      ...parts,
      ...series.map(({ values, tone }) =>
        s("path", {
          class: `${isLines ? "plot" : "bars"} tone${tone}`,
          d: isLines ? linePath(values, y) : barPath(values, y, under),
        }),
      ),
      cursor,
    );
  }

  /**
   * @param {(number | null)[]} values
   * @param {(value: number) => number} y
   * @param {number[]} under what the bars stand on
   */
  function barPath(values, y, under) {
    const wide = Math.max(1, place(scale, scale.from + step) - LEFT - 1).toFixed(1);
    return times
      .map((time, at) => {
        const from = under[at];
        under[at] = from + (values[at] ?? 0);
        return values[at]
          ? `M${place(scale, time)} ${y(from)}h${wide}V${Math.min(y(from) - 1, y(under[at]))}h-${wide}z`
          : "";
      })
      .join("");
  }

  /** @param {(number | null)[]} values @param {(value: number) => number} y */
  function linePath(values, y) {
    const has = (/** @type {number} */ at) => values[at] !== null && values[at] !== undefined;
    return times
      .map((time, at) => {
        const here = `${place(scale, time + step / 2)} ${y(values[at] ?? 0)}`;
        return !has(at) ? "" : has(at - 1) ? `L${here}` : `M${here}${has(at + 1) ? "" : "h3"}`;
      })
      .join("");
  }

  /** @param {PointerEvent} event */
  function point(event) {
    const share = (event.clientX - svg.getBoundingClientRect().left - LEFT) / (scale.right - LEFT);
    show(share < 0 || share > 1 ? -1 : after(times, scale.from + share * (scale.to - scale.from)) - 1);
  }

  /** @param {number} at */
  function show(at) {
    const time = times[at];
    cursor.setAttribute("d", time === undefined ? "" : `M${place(scale, time + step / 2)} ${TOP}V${HIGH - FOOT}`);
    put(
      readout,
      time !== undefined && [
        h("span", clock(time)),
        series.map(({ label, tone, values }) => h("span", key(tone), `${oneLine(label, 24)} ${format(values[at])}`)),
      ],
    );
  }

  function numbers() {
    return table(
      `${title} over time`,
      ["Time", ...series.map(({ label }) => oneLine(label, 40))],
      times.map((time, at) => [clock(time), ...series.map(({ values }) => format(values[at]))]).reverse(),
    );
  }

  return { element, close: () => sizes.disconnect() };
}

/** @param {number} time */
function clock(time) {
  return moment(time).replace(/[.,]\d{3}/, "");
}

/** @param {number} tone */
function key(tone) {
  return h("span", { class: `swatch tone${tone}` });
}

/** @param {{label: string, tone: number}[]} series */
export function legend(series) {
  return h(
    "ul.legend",
    series.map(({ label, tone }) => h("li", key(tone), name(label))),
  );
}
