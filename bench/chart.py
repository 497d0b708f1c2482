"""Draw the chart of docs/performance.md: CPU time per request by gateway, on a logarithmic scale, as an SVG file."""

from __future__ import annotations

import math
from pathlib import Path
from xml.sax.saxutils import escape

from bench.gateways import ROOT
from bench.measure import Results, median
from bench.report import number
from bench.scenarios import BY_NAME, FLOOR, LITELLM, OURS, ROUTER, TENSORZERO

PICTURE = ROOT / "docs" / "performance.svg"
SHOWN = ("A", "B", "C", "D", "E")
# Medium brightness, so that bars are visible on light and dark backgrounds. The text colour follows the background.
COLOURS = {OURS: "#d9622b", TENSORZERO: "#5b8ff0", ROUTER: "#8f7bd6", LITELLM: "#3fa37c", FLOOR: "#9a9a9a"}
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.t{font-weight:600}line{stroke:#999;stroke-opacity:.35}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}}"
)
LEFT, WIDE, ROW, GAP = 150, 520, 18, 34


def rows(results: Results) -> dict[str, list[tuple[str, float]]]:
    """Return the gateways and their medians by scenario; those that were not measured are left out."""
    found = {}
    for name in SHOWN:
        names = {gateway.partition(":")[0]: gateway for gateway in results.cells.get(name, {})}
        values = [
            (names[gateway], median(results.series(name, names[gateway]))) for gateway in COLOURS if gateway in names
        ]
        found[name] = [(gateway.replace(":", ", its "), value) for gateway, value in values if value > 0]
    return {name: gateways for name, gateways in found.items() if gateways}


def svg(shown: dict[str, list[tuple[str, float]]]) -> str:
    """Return the chart as SVG text."""
    values = [value for gateways in shown.values() for _, value in gateways]
    least, most = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    drawn, y = [], 46
    for name, gateways in shown.items():
        drawn.append(_text(10, y, f"{name}: {BY_NAME[name].title}", "t"))
        for gateway, value in gateways:
            y += ROW
            width = max(2.0, (math.log10(value) - least) / (most - least) * WIDE)
            colour = COLOURS[gateway.partition(",")[0]]
            bar = f'<rect x="{LEFT}" y="{y - 11}" width="{width:.0f}" height="13" rx="2" fill="{colour}"/>'
            drawn += [_text(LEFT - 8, y, gateway, anchor="end"), bar, _text(LEFT + width + 6, y, number(value))]
        y += GAP
    grid = []
    for power in range(least, most + 1):
        x = LEFT + (power - least) / (most - least) * WIDE
        grid += [
            f'<line x1="{x:.0f}" x2="{x:.0f}" y1="28" y2="{y - GAP + 8}"/>',
            _text(x, 22, f"{10.0**power:g}", anchor="middle"),
        ]
    size = f"0 0 {LEFT + WIDE + 70} {y - GAP + 16}"
    title = _text(10, 22, "CPU ms a request", "t")
    inner = "\n".join([f"<style>{_STYLE}</style>", title, *grid, *drawn])
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img">\n{inner}\n</svg>\n'


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "") -> str:
    more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:.0f}" y="{y}"{more}>{escape(text)}</text>'


def write(results: Results, place: Path = PICTURE) -> str:
    """Write the chart and return the Markdown that shows it; empty if there are no figures."""
    shown = rows(results)
    if not shown:
        return ""
    place.write_text(svg(shown))
    return f"![CPU time a request by gateway]({place.name})\n\n"
