"""Render a chat template in the form of Hugging Face, as transformers does, in a child process with limits.

A template is a program that may come from anywhere. Three measures keep it harmless: Jinja's immutable sandbox gives
it no access to the interpreter and lets it change no value; the child has limits on processor time, address space and
output, and the parent has a timeout; the child's environment holds only what Python needs to start.

`python -m dragoman.cli.chat_template` is the child: it reads JSON from standard input and writes JSON to standard
output. `raw_tools_learn` is the caller.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from dragoman.filters.raw_tools.learning.pieces import RenderJob
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

SECONDS = 30
_MEMORY = 512 * 1024 * 1024
_LONGEST_TEMPLATE = 1024 * 1024
_LONGEST_RENDERING = 256 * 1024
_PASSED_VARIABLES = ("PATH", "PYTHONPATH", "SYSTEMROOT", "LD_LIBRARY_PATH")
_MISSING = (
    "jinja2 is needed for chat templates and is not installed. Install the extra: pip install 'dragoman[raw-tools]'"
)
_NO_JINJA = 9  # exit status of the child


class TemplateError(Exception):
    """A template that cannot be used; the text is the sentence to print."""


class Template(Struct, frozen=True):
    """A template and the variables it is rendered with."""

    source: str
    variables: dict[str, Any] = {}


class Rendered(Struct, frozen=True):
    """The rendered texts by the name of their job, and the reasons of the jobs that failed."""

    texts: dict[str, str]
    errors: dict[str, str]


# --- the parent


def read_template(name: str, data: bytes, variables: Mapping[str, Json]) -> Template:
    """Return the template of a .jinja file, or of a tokenizer_config.json. Raises TemplateError."""
    tokens: dict[str, Json] = {"bos_token": "<s>", "eos_token": "</s>"}
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TemplateError(f"{name}: the file is not UTF-8 text") from None
    if Path(name).suffix == ".json":
        config = jsonio.decode_object(text)
        if config is None:
            raise TemplateError(
                f"{name}: the file is not a JSON object; expected a tokenizer_config.json or a .jinja file"
            )
        text = _template_in(config, name)
        for key in tokens:
            token = config.get(key)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                tokens[key] = token
    if len(text) > _LONGEST_TEMPLATE:
        raise TemplateError(f"{name}: the template has more than {_LONGEST_TEMPLATE} characters")
    return Template(text, {**tokens, **variables})


def _template_in(config: Mapping[str, Json], name: str) -> str:
    template = config.get("chat_template")
    if isinstance(template, list):  # several templates, by name
        named = {str(each.get("name")): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("tool_use") or named.get("default")
    if not isinstance(template, str):
        raise TemplateError(f"{name}: the file has no chat_template; use the .jinja file instead")
    return template


def render(template: Template, jobs: Mapping[str, RenderJob], seconds: float = SECONDS) -> Rendered:
    """Render all jobs in a child process. Raises TemplateError if the child gives no result in time."""
    request = jsonio.encode({"template": template, "jobs": dict(jobs), "seconds": seconds})
    environ = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    command = [sys.executable, "-m", "dragoman.cli.chat_template"]
    try:
        result = subprocess.run(command, input=request, capture_output=True, timeout=seconds, env=environ, check=False)
    except subprocess.TimeoutExpired:
        raise TemplateError(f"the template did not finish within {seconds:g} seconds") from None
    if result.returncode == _NO_JINJA:
        raise TemplateError(_MISSING)
    try:
        return _read_rendered(result.stdout)
    except jsonio.JsonError:
        reason = "it used too much memory or time" if result.returncode < 0 else _last_line(result.stderr)
        raise TemplateError(f"the template could not be rendered: {reason}") from None


_read_rendered = jsonio.typed_decoder(Rendered)


def _last_line(data: bytes) -> str:
    lines = data.decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "the process that renders the template ended without output"


# --- the child


class _RenderRequest(Struct, frozen=True):
    template: Template
    jobs: dict[str, RenderJob]
    seconds: float


def main() -> int:
    """Render the jobs that standard input describes; the entry point of the child."""
    request = jsonio.typed_decoder(_RenderRequest)(sys.stdin.buffer.read())
    try:
        import jinja2  # noqa: F401
    except ImportError:
        return _NO_JINJA
    _limit(request.seconds)
    texts: dict[str, str] = {}
    errors: dict[str, str] = {}
    try:
        rendering = _compile(request.template)
    except Exception as error:  # noqa: BLE001  # a template can raise anything; the user gets its text
        errors[""] = f"the template has an error: {_describe(error)}"
    else:
        for name, job in request.jobs.items():
            try:
                text = rendering(messages=job.messages, tools=job.tools, add_generation_prompt=job.generation_prompt)
            except Exception as error:  # noqa: BLE001  # a template can raise anything; the user gets its text
                errors[name] = _describe(error)
                continue
            if len(text) > _LONGEST_RENDERING:
                errors[name] = f"the rendering has more than {_LONGEST_RENDERING} characters"
            else:
                texts[name] = text
    sys.stdout.buffer.write(jsonio.encode(Rendered(texts, errors)))
    return 0


def _describe(error: Exception) -> str:
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


def _compile(template: Template) -> Callable[..., str]:
    """Compile a template as transformers does: with the same options, filters and functions."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import CallBlock, Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks a model's text for training; its content is rendered unchanged."""

        tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

        def parse(self, parser: Parser) -> Node | list[Node]:
            """Parse the block as a call that returns its content."""
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
    environment.filters["tojson"] = jsonio.encode_like_python
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = _now
    compiled = environment.from_string(template.source)
    variables: dict[str, Any] = {"documents": None, **msgspec.to_builtins(template.variables)}

    def rendering(**arguments: Any) -> str:
        return str(compiled.render(**variables, **arguments))

    return rendering


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


if __name__ == "__main__":
    sys.exit(main())
