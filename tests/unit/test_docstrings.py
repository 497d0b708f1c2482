"""Public functions, classes and methods of the package have docstrings, in the forms of the standard library's."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import dragoman

ROOT = Path(dragoman.__file__).parent
# The third person at the beginning of a docstring: "Reads a file." instead of "Read a file."
_THIRD_PERSON = re.compile(
    r"(?:Adds|Builds|Compares|Converts|Decodes|Encodes|Finds|Gives|Installs|Makes|Parses|Prints|Reads|Removes|Renders"
    r"|Returns|Runs|Schedules|Sends|Takes|Translates|Turns|Waits|Writes)\b"
)


def modules() -> Iterator[ModuleType]:
    """Yield the modules of the package."""
    for found in pkgutil.walk_packages(dragoman.__path__, "dragoman."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def public_classes() -> Iterator[type]:
    for module in modules():
        for name, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_"):
                yield value


def methods(owner: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield the public methods and properties that a class itself defines; `msgspec` adds others."""
    for name, value in vars(owner).items():
        function: Any = value
        match value:
            case staticmethod() | classmethod():
                function = value.__func__
            case property():
                function = value.fget
            case functools.cached_property():
                function = value.func
            case _:
                pass
        is_own = inspect.isfunction(function) and function.__qualname__ == f"{owner.__qualname__}.{name}"
        if is_own and not name.startswith("_"):
            yield name, function


CLASSES = sorted(set(public_classes()), key=lambda each: (each.__module__, each.__qualname__))
PROTOCOLS = {
    each: frozenset(name for name, _ in methods(each)) for each in CLASSES if getattr(each, "_is_protocol", False)
}


def is_override(owner: type, name: str) -> bool:
    """Return whether a base class has the method, or a protocol that the class implements."""
    if any(name in vars(base) for base in owner.__mro__[1:]):
        return True
    return any(
        name in members and owner is not protocol and all(hasattr(owner, member) for member in members)
        for protocol, members in PROTOCOLS.items()
    )


def test_public_methods_that_are_no_overrides_have_a_docstring() -> None:
    assert len(CLASSES) > 300
    missing = [
        f"{owner.__module__}.{owner.__qualname__}.{name}"
        for owner in CLASSES
        for name, function in methods(owner)
        if not function.__doc__ and not is_override(owner, name)
    ]
    assert missing == []


def docstrings() -> Iterator[tuple[str, str, ast.AST]]:
    """Yield place, docstring and node of every module, class and function of the package."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if is_documented and (text := ast.get_docstring(node)):  # type: ignore[arg-type]
                yield f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'the module')}", text, node


def test_no_docstring_begins_with_what() -> None:
    """A docstring says what a thing is or does: "The limits of a key", "Return the limits", not "What a key may do"."""
    found = [(place, text.splitlines()[0]) for place, text, _ in docstrings() if re.match(r"What\b", text)]
    assert [each for each in found if not each[0].startswith("gateway/inspector/")] == []


def is_property(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(each).endswith("property") for each in decorators)


def test_modules_and_functions_are_described_in_the_imperative_or_by_a_noun() -> None:
    """A property may be described as `Whether …`, a function as `Return whether …`."""
    found = [
        (place, text.splitlines()[0])
        for place, text, node in docstrings()
        if not isinstance(node, ast.ClassDef)
        and (_THIRD_PERSON.match(text) or (text.startswith("Whether") and not is_property(node)))
    ]
    assert [each for each in found if not each[0].startswith("gateway/inspector/")] == []
