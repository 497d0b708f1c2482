"""No file, function or table of settings grows beyond what one reads at a time."""

from __future__ import annotations

import ast
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
