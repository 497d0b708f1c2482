"""Limits on the length of files and functions and on fields of capabilities; classes and type aliases share no name."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import dragoman
from dragoman.model.capabilities import Capabilities

FILE, FUNCTION, FIELDS = 500, 45, 35
FILES = sorted(Path(dragoman.__file__).parent.rglob("*.py"))


def length(node: ast.AST) -> int:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_no_file_is_longer_than_500_lines() -> None:
    assert len(FILES) > 100
    assert [path.name for path in FILES if len(path.read_text().splitlines()) > FILE] == []


def test_no_function_is_longer_than_45_lines() -> None:
    functions = [
        (path.name, node.name, length(node))
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(functions) > 1000
    assert [each for each in functions if each[2] > FUNCTION] == []


def test_capabilities_have_at_most_35_fields() -> None:
    assert 0 < len(Capabilities.__struct_fields__) <= FIELDS


def type_name(node: ast.stmt) -> str:
    """Return the name of a class or a type alias; empty for other statements."""
    match node:
        case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
            return name
        case _:
            return ""


def test_no_two_public_classes_or_type_aliases_have_one_name() -> None:
    named = (type_name(node) for path in FILES for node in ast.parse(path.read_text()).body)
    names = Counter(name for name in named if name and not name.startswith("_"))
    assert len(names) > 500
    # `dragoman.raw_tools` is an API of its own, and `ToolCall` is the name that its users know.
    assert [name for name, count in names.items() if count > 1] == ["ToolCall"]
