"""The public API is exported, typed and described: every name, option and error of docs/library.md."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest
from msgspec import NODEFAULT, structs

import dragoman
import dragoman.agent
import dragoman.dialects as registry
import dragoman.raw_tools
from dragoman.dialects import _BUILT_IN
from dragoman.errors import DragomanError
from dragoman.translate import TranslationSettings
from tests.docs.mypy_run import check_types
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
PROGRAM = Path(__file__).with_name("user_program.py")
MODULES: tuple[ModuleType, ...] = (dragoman, dragoman.agent, dragoman.raw_tools)
PUBLIC = {name: getattr(module, name) for module in MODULES for name in module.__all__}


def section(title: str) -> str:
    """Return the text below a heading of the page, up to the next heading."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def subclasses(kind: type[DragomanError]) -> Iterator[type[DragomanError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from subclasses(each)


# --- names


def test_every_error_of_the_tree_is_exported() -> None:
    tree = importlib.import_module("dragoman.errors")
    errors = {each.__name__ for each in subclasses(DragomanError) if each.__module__ == tree.__name__}
    assert len(errors) == 19
    assert {*errors, "ConfigError", "Fault"} <= set(dragoman.__all__)


def documented() -> Iterator[tuple[str, str]]:
    """Yield the docstrings of the public modules, functions, classes and their public members."""
    for module in MODULES:
        yield module.__name__, module.__doc__ or ""
    for name, value in PUBLIC.items():
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value.__doc__ or ""
        for member, part in vars(value).items() if inspect.isclass(value) else ():
            if not member.startswith("_") and (inspect.isfunction(part) or isinstance(part, property)):
                yield f"{name}.{member}", part.__doc__ or ""


def test_an_error_that_a_docstring_names_can_be_imported() -> None:
    texts = dict(documented())
    assert len(texts) > 100
    named = {(place, word) for place, text in texts.items() for word in re.findall(r"Raises? ([^.]*)", text)}
    errors = {(place, error) for place, words in named for error in re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", words)}
    assert {"MalformedRequest", "ConfigError", "ToolError", "BedrockResponseError"} <= {error for _, error in errors}
    assert {each for each in errors if each[1] not in PUBLIC} == set()


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name, text in documented() if not text.strip()] == []


def test_lists_of_names_agree() -> None:
    assert sorted([*dragoman._MODULES, "__version__"]) == sorted(dragoman.__all__) == sorted(dir(dragoman))
    assert all(PUBLIC[name] is not None for name in dragoman.__all__)


def test_the_page_names_everything_that_is_public() -> None:
    prose = re.sub(r"^```.*?^```$", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", prose))))
    assert [name for name in PUBLIC if name not in words] == []


def test_the_page_lists_every_error_of_dragoman() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", section("Errors").partition("Raised by")[0], re.MULTILINE)
    expected = [name for name, kind in PUBLIC.items() if inspect.isclass(kind) and issubclass(kind, DragomanError)]
    assert sorted(rows) == sorted(name for name in expected if name in dragoman.__all__)


def test_the_import_loads_nothing_else() -> None:
    script = "import sys, dragoman; print(sorted(name for name in sys.modules if name.startswith('dragoman.')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "['dragoman._version']\n"


# --- options


def settings_of_dialects() -> dict[str, tuple[Any, Any]]:
    """Return type and default of each setting of the translation and of the built-in dialects."""
    found: dict[str, tuple[Any, Any]] = {}
    kinds: list[tuple[str, Any]] = [("", TranslationSettings)]
    kinds += [(name, type(registry.get(name).codec)) for name in _BUILT_IN]
    for dialect, kind in kinds:
        hints = get_type_hints(kind)
        for field in structs.fields(kind):
            assert field.default is not NODEFAULT
            setting = (hints[field.name], field.default)
            assert found.setdefault(field.name, setting) == setting, f"{dialect} means another {field.name}"
    return found


def test_options_are_the_settings_with_their_types() -> None:
    expected = {name: kind for name, (kind, _) in settings_of_dialects().items()}
    hints = get_type_hints(dragoman.Options)
    assert hints.pop("settings") is not None
    assert hints == expected
    assert dragoman.Options.__required_keys__ == frozenset()


def test_the_page_describes_every_option_with_type_and_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| `(.+?)` \| (.+) \|$", section("Options"), re.MULTILINE)
    plain = [[text.replace("\\|", "|").replace('"', "'") for text in row] for row in rows]
    described = {name: (kind, default) for name, kind, default, meaning in plain if meaning}
    assert described.pop("settings") == ("Mapping[str, object]", "{}")
    written = {name: each.__forward_arg__ for name, each in dragoman.Options.__annotations__.items()}
    assert described == {name: (written[name], repr(default)) for name, (_, default) in settings_of_dialects().items()}


# --- types


def test_a_program_that_uses_every_name_runs(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120.0,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "used\n", "")


def test_a_program_that_uses_every_name_passes_strict_type_checks(tmp_path: Path) -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    attributes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    used = {(node.value.id, node.attr) for node in attributes if isinstance(node.value, ast.Name)}
    names = {(module.__name__.rpartition(".")[2], name) for module in MODULES for name in module.__all__}
    assert names - used == set()
    copy = tmp_path / "program.py"
    copy.write_text(text, encoding="utf-8")
    assert check_types(copy) == ""


WRONG = [
    ('translate_request({}, source="openai", target="kiro", loses="refuse")', 'Unexpected keyword argument "loses"'),
    ('translate_request({}, source="openai", target="kiro", losses="maybe")', 'Argument "losses"'),
    ('translate_request({}, source="openai", target="ollama", num_ctx="4096")', 'Argument "num_ctx"'),
    ('translate_reply(b"", source="openai", target="kiro", repair=1)', 'Argument "repair"'),
    ('stream_translator(source="openai", target="kiro", think_tag=True)', 'Unexpected keyword argument "think_tag"'),
    ('stream_translator(source="openai", target="kiro", request={})', 'Argument "request"'),
    ('render_error(ValueError("x"), dialect="openai")', 'Argument 1 to "render_error"'),
    ("asgi(5)", 'Argument 1 to "asgi"'),
    ("load_config(b'x')", 'Argument 1 to "load_config"'),
]


def test_a_wrong_option_or_argument_is_a_type_error(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("import dragoman\n" + "".join(f"dragoman.{call}\n" for call, _ in WRONG), encoding="utf-8")
    reported = [line for line in check_types(file).splitlines() if ": error: " in line]
    assert [int(line.split(":")[1]) for line in reported] == [*range(2, len(WRONG) + 2)]
    assert [line for line, (_, expected) in zip(reported, WRONG, strict=True) if expected not in line] == []


@pytest.mark.parametrize("name", ["translate_request", "translate_reply", "stream_translator"])
def test_options_have_a_type_at_run_time_too(name: str) -> None:
    parameters = inspect.signature(inspect.unwrap(PUBLIC[name])).parameters
    assert parameters["options"].annotation == "Unpack[Options]"
