"""`dragoman raw-tools learn`: write a table file for the raw tool calls of a chat template.

The table goes to standard output or to --output, the report to standard error. The command renders probes (generated
tool calls) with the template, learns a table from the texts, and verifies it with further probes.

Exit status: 0 the table reads all probes, 1 no table was learnt, 3 a table was written, but it misreads some probes.
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from dragoman.cli.chat_template import Template, TemplateError, read_template, render
from dragoman.cli.terminal import Paint, named_values, one_line, print_error, read_input
from dragoman.filters.raw_tools.learning import CannotLearn
from dragoman.filters.raw_tools.learning import learn as learn_table
from dragoman.filters.raw_tools.learning.pieces import (
    extract_probe_texts,
    probe_jobs,
    verification_jobs,
    verification_text,
)
from dragoman.filters.raw_tools.learning.probes import VARIANTS, ProbeCall, Variant, generate_calls
from dragoman.filters.raw_tools.learning.verify import VerificationReport, find_shipped_equal, verify
from dragoman.filters.raw_tools.table import Table, TableFileError, parse_tables, register_tables, render_tables

_CHECKS = 60
_NOT_ALL_READ = 3
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


class LearntTable(Struct, frozen=True):
    """A learnt table, and the result of reading the template's texts with it."""

    table: Table
    verdict: VerificationReport
    shipped: str  # the shipped table that reads the same texts, if any
    sample: str


def learn(arguments: Namespace) -> int:
    """Run `dragoman raw-tools learn`; return the exit status."""
    variables = named_values("--set", arguments.set)
    file_name = _NOT_IN_NAMES.sub("_", Path(arguments.template).name.partition(".")[0]).strip("_.-")
    try:
        template = read_template(arguments.template, read_input(arguments.template), variables)
        learnt = learn_from(template, arguments.name or file_name or "learnt")
    except (TemplateError, CannotLearn, TableFileError) as error:
        return print_error(error, 1)
    written = (
        f"# Learnt from {Path(arguments.template).name} by dragoman raw-tools learn.\n{render_tables([learnt.table])}"
    )
    if arguments.output is None:
        print(written, end="")
    else:
        try:
            arguments.output.write_text(written, encoding="utf-8")
        except OSError as error:
            return print_error(f"{arguments.output}: {error.strerror or error}", 1)
    _report(learnt, arguments.output)
    return 0 if learnt.verdict.all_match else _NOT_ALL_READ


def learn_from(template: Template, name: str) -> LearntTable:
    """Learn the table of a template and verify it. Raises TemplateError and CannotLearn."""
    reasons: list[str] = []
    for variant in VARIANTS:
        rendered = render(template, probe_jobs(variant))
        if "" in rendered.errors:
            raise TemplateError(rendered.errors[""])
        try:
            table = learn_table(extract_probe_texts(rendered.texts), name)
        except CannotLearn as error:
            reasons.append(_reason(error, rendered.errors))
            continue
        parse_tables(render_tables([table]))  # raises TableFileError for a name that tables may not have
        return _verify(template, table, variant)
    raise CannotLearn("; ".join(dict.fromkeys(reasons)))


def _reason(error: CannotLearn, errors: Mapping[str, str]) -> str:
    refusal = errors.get("one")
    if refusal is None:
        return str(error)
    hint = "; set a variable of the template with --set NAME=VALUE" if "undefined" in refusal else ""
    return f"the template refuses a reply with a tool call: {refusal}{hint}"


def _verify(template: Template, table: Table, variant: Variant) -> LearntTable:
    sets = generate_calls(_CHECKS)
    texts = render(template, verification_jobs(sets, variant)).texts
    probes: list[tuple[Sequence[ProbeCall], str]] = []
    for number, calls in enumerate(sets):
        text = verification_text(texts, number)
        if text is not None:
            probes.append((calls, text))
    verdict = verify(register_tables((table,), f"learnt:{table.name}"), probes)
    sample = next((text for calls, text in probes if calls[0].arguments), "")
    return LearntTable(table, verdict, find_shipped_equal(table, probes), sample)


def _report(learnt: LearntTable, output: Path | None) -> None:
    paint = Paint(sys.stderr)
    table, verdict = learnt.table, learnt.verdict
    lines = [
        f"format   {table.body}, {'special tokens' if table.special else 'tags'}",
        f"section  {_shown(table.section_begin)} … {_shown(table.section_end)}",
        f"call     {_shown(table.call_begin)} … {_shown(table.call_end)}",
        f"sample   {one_line(learnt.sample.strip(), 400)}",
        f"checked  {verdict.read} of {verdict.total} renderings read correctly",
    ]
    for line in lines:
        print(paint(line[:9], "dim") + line[9:], file=sys.stderr)
    for mismatch in verdict.mismatches[:3]:
        print(f"{paint('missed', 'yellow')}   {one_line(mismatch.text.strip(), 400)}", file=sys.stderr)
        print(
            f"         expected {one_line(mismatch.expected, 300)}\n         read     {one_line(mismatch.read, 300)}",
            file=sys.stderr,
        )
    if learnt.shipped:
        print(
            f'The shipped format {learnt.shipped} reads the same calls: set raw_tools = "{learnt.shipped}".',
            file=sys.stderr,
        )
    elif output is not None:
        print(f'Use it with raw_tools = "file:{output}".', file=sys.stderr)


def _shown(markers: tuple[str, ...]) -> str:
    return one_line(" or ".join(markers)) if markers else "none"
