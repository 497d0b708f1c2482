"""`dragoman raw-tools learn`: the table file on standard output (or where --output says), the report on standard error.

Exit status: 0 every probe was read back, 1 no table could be learnt, 3 a table was written, but some probes were not
read back.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from dragoman.cli.terminal import Paint, complain, one_line, read
from dragoman.cli.translate import named_value
from dragoman.filters.raw_tools.learning import CannotLearn
from dragoman.filters.raw_tools.learning import learn as learn_table
from dragoman.filters.raw_tools.learning.probes import VARIANTS, ProbeCall, Variant, generated
from dragoman.filters.raw_tools.learning.shots import check_jobs, checked_text, probe_jobs, shots_of
from dragoman.filters.raw_tools.learning.verify import Verdict, shipped_equal, verify
from dragoman.filters.raw_tools.table import Table
from dragoman.filters.raw_tools.table_file import TableFileError, keep, parse, write
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

# --- Render a chat template of Hugging Face's form, as transformers does, in a child process with limits.
#
# A template is a program from somewhere on the internet. Three things keep it harmless: Jinja's sandbox gives it no
# attribute that leads to the interpreter, and nothing it is given can be changed; the child has a limit on processor
# time, address space and output, and the parent waits for a bounded time; the child gets an empty environment.
#
# `python -m dragoman.cli.chat_template` is the child: JSON on standard input, JSON on standard output.


SECONDS = 30
_MEMORY = 512 * 1024 * 1024
_LONGEST_TEMPLATE = 1024 * 1024
_LONGEST_RENDERING = 256 * 1024
_KEPT = ("PATH", "PYTHONPATH", "SYSTEMROOT", "LD_LIBRARY_PATH")
_MISSING = "jinja2 is not installed, and a chat template needs it. Install the extra: pip install 'dragoman[raw-tools]'"
_NO_JINJA = 9  # exit status of the child


class TemplateError(Exception):
    """A template that cannot be used; the text is the sentence to print."""


class Template(Struct, frozen=True):
    """A template and the variables it is rendered with."""

    source: str
    variables: dict[str, Any] = {}


class Rendered(Struct, frozen=True):
    """The texts by the name of their job, and for those that failed the reason."""

    texts: dict[str, str]
    errors: dict[str, str]


# --- the parent


def read_template(name: str, data: bytes, variables: Mapping[str, Json]) -> Template:
    """Return the template of a .jinja file, or of a tokenizer_config.json. Raises TemplateError."""
    given: dict[str, Json] = {"bos_token": "<s>", "eos_token": "</s>"}
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TemplateError(f"{name}: not UTF-8 text") from None
    if Path(name).suffix == ".json":
        config = jsonio.object_of(text)
        if config is None:
            raise TemplateError(f"{name}: not a JSON object; expected a tokenizer_config.json or a .jinja file")
        text = _template_in(config, name)
        for key in given:
            token = config.get(key)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                given[key] = token
    if len(text) > _LONGEST_TEMPLATE:
        raise TemplateError(f"{name}: a template of more than {_LONGEST_TEMPLATE} characters")
    return Template(text, {**given, **variables})


def _template_in(config: Mapping[str, Json], name: str) -> str:
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {str(each.get("name")): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("tool_use") or named.get("default")
    if not isinstance(found, str):
        raise TemplateError(f"{name}: has no chat_template; give the .jinja file instead")
    return found


def render(template: Template, jobs: Mapping[str, Struct], seconds: float = SECONDS) -> Rendered:
    """Render all jobs (the fields of `Job`) in a child process. Raises TemplateError if it gives no answer."""
    order = jsonio.encode({"template": template, "jobs": dict(jobs), "seconds": seconds})
    environ = {name: os.environ[name] for name in _KEPT if name in os.environ}
    command = [sys.executable, "-m", "dragoman.cli.chat_template"]
    try:
        done = subprocess.run(command, input=order, capture_output=True, timeout=seconds, env=environ, check=False)
    except subprocess.TimeoutExpired:
        raise TemplateError(f"the template did not finish within {seconds:g} seconds") from None
    if done.returncode == _NO_JINJA:
        raise TemplateError(_MISSING)
    try:
        return _read_rendered(done.stdout)
    except jsonio.JsonError:
        reason = "it used too much memory or time" if done.returncode < 0 else _last_line(done.stderr)
        raise TemplateError(f"the template could not be rendered: {reason}") from None


_read_rendered = jsonio.typed(Rendered)


def _last_line(data: bytes) -> str:
    lines = data.decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "the process that renders it ended without a word"


# --- the child


class Job(Struct, frozen=True):
    """One conversation to render."""

    messages: list[Any]
    tools: list[Any]
    generation_prompt: bool = False


class _Order(Struct, frozen=True):
    template: Template
    jobs: dict[str, Job]
    seconds: float


def main() -> int:
    """Render what standard input says."""
    order = jsonio.typed(_Order)(sys.stdin.buffer.read())
    try:
        import jinja2  # noqa: F401
    except ImportError:
        return _NO_JINJA
    _limit(order.seconds)
    texts: dict[str, str] = {}
    errors: dict[str, str] = {}
    try:
        rendering = _compiled(order.template)
    except Exception as error:  # noqa: BLE001  # whatever a template does wrong is said to the user
        errors[""] = f"the template has an error: {_said(error)}"
    else:
        for name, job in order.jobs.items():
            _render_one(rendering, name, job, texts, errors)
    sys.stdout.buffer.write(jsonio.encode(Rendered(texts, errors)))
    return 0


def _render_one(
    rendering: Callable[..., str], name: str, job: Job, texts: dict[str, str], errors: dict[str, str]
) -> None:
    try:
        text = rendering(messages=job.messages, tools=job.tools, add_generation_prompt=job.generation_prompt)
    except Exception as error:  # noqa: BLE001  # whatever a template does wrong is said to the user
        errors[name] = _said(error)
        return
    if len(text) > _LONGEST_RENDERING:
        errors[name] = f"the rendering has more than {_LONGEST_RENDERING} characters"
    else:
        texts[name] = text


def _said(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it needs too much memory"
    return f"{error} ({type(error).__name__})" if str(error) else type(error).__name__


def _limit(seconds: float) -> None:
    with suppress(ImportError):  # Windows has only the parent's time limit
        import resource

        for limit, value in ((resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_CPU, int(seconds) + 1)):
            hard = resource.getrlimit(limit)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            with suppress(OSError, ValueError):  # macOS refuses the address space
                resource.setrlimit(limit, (bound, hard))


def _compiled(template: Template) -> Callable[..., str]:
    """Compile as transformers does: the same switches, filters and functions."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import CallBlock, Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what a model wrote, for training; its content is rendered as it is."""

        tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

        def parse(self, parser: Parser) -> Node | list[Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

        def _content(self, caller: Callable[[], str]) -> str:
            return caller()

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = jsonio.python_text
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = _now
    compiled = environment.from_string(template.source)
    variables: dict[str, Any] = {"documents": None, **msgspec.to_builtins(template.variables)}

    def rendering(**given: Any) -> str:
        return str(compiled.render(**variables, **given))

    return rendering


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


if __name__ == "__main__":
    sys.exit(main())


_CHECKS = 60
_NOT_ALL_READ = 3
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


class Learnt(Struct, frozen=True):
    """A table and how well it reads what the template writes."""

    table: Table
    verdict: Verdict
    shipped: str  # the shipped table that reads all of it, too
    sample: str


def learn(arguments: Namespace) -> int:
    """Run the command."""
    try:
        template = read_template(arguments.template, read(arguments.template), dict(map(named_value, arguments.set)))
        found = learn_from(template, arguments.name or _name_of(arguments.template))
    except (TemplateError, CannotLearn, TableFileError) as error:
        return complain(error, 1)
    written = f"# Learnt from {Path(arguments.template).name} by dragoman raw-tools learn.\n{write([found.table])}"
    if arguments.output is None:
        print(written, end="")
    else:
        try:
            arguments.output.write_text(written, encoding="utf-8")
        except OSError as error:
            return complain(f"{arguments.output}: {error.strerror or error}", 1)
    _report(found, arguments.output)
    return 0 if found.verdict.all_read else _NOT_ALL_READ


def learn_from(template: Template, name: str) -> Learnt:
    """Learn the table of a template and verify it. Raises TemplateError and CannotLearn."""
    reasons: list[str] = []
    for variant in VARIANTS:
        rendered = render(template, probe_jobs(variant))
        if "" in rendered.errors:
            raise TemplateError(rendered.errors[""])
        try:
            table = learn_table(shots_of(rendered.texts), name)
        except CannotLearn as error:
            reasons.append(_why(error, rendered.errors))
            continue
        parse(write([table]))  # a name that no table may have is said here
        return _verified(template, table, variant)
    raise CannotLearn("; ".join(dict.fromkeys(reasons)))


def _why(error: CannotLearn, errors: Mapping[str, str]) -> str:
    refusal = errors.get("one")
    if refusal is None:
        return str(error)
    hint = "; a variable it needs can be given with --set NAME=VALUE" if "undefined" in refusal else ""
    return f"the template refuses an answer with a tool call: {refusal}{hint}"


def _verified(template: Template, table: Table, variant: Variant) -> Learnt:
    sets = generated(_CHECKS)
    texts = render(template, check_jobs(sets, variant)).texts
    probes: list[tuple[Sequence[ProbeCall], str]] = []
    for number, calls in enumerate(sets):
        text = checked_text(texts, number)
        if text is not None:
            probes.append((calls, text))
    verdict = verify(keep((table,), f"learnt:{table.name}"), probes)
    sample = next((text for calls, text in probes if calls[0].arguments), "")
    return Learnt(table, verdict, shipped_equal(table, probes), sample)


def _name_of(template: str) -> str:
    return _NO_NAME.sub("_", Path(template).name.partition(".")[0]).strip("_.-") or "learnt"


def _report(found: Learnt, output: Path | None) -> None:
    paint = Paint(sys.stderr)
    table, verdict = found.table, found.verdict
    lines = [
        f"format   {table.body}, {'special tokens' if table.special else 'tags'}",
        f"section  {_shown(table.section_begin)} … {_shown(table.section_end)}",
        f"call     {_shown(table.call_begin)} … {_shown(table.call_end)}",
        f"sample   {one_line(found.sample.strip(), 400)}",
        f"checked  {verdict.read} of {verdict.total} renderings read back",
    ]
    for line in lines:
        print(paint(line[:9], "dim") + line[9:], file=sys.stderr)
    for miss in verdict.misses[:3]:
        print(f"{paint('missed', 'yellow')}   {one_line(miss.text.strip(), 400)}", file=sys.stderr)
        print(f"         meant {one_line(miss.meant, 300)}\n         read  {one_line(miss.read, 300)}", file=sys.stderr)
    if found.shipped:
        print(f'This is {found.shipped}, which ships: raw_tools = "{found.shipped}" reads it.', file=sys.stderr)
    elif output is not None:
        print(f'Use it with raw_tools = "file:{output}".', file=sys.stderr)


def _shown(markers: tuple[str, ...]) -> str:
    return one_line(" or ".join(markers)) if markers else "none"
