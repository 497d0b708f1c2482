"""The prose of a file: Markdown without code, and the comments, docstrings and messages of Python modules."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.messages import collect

ROOT = Path(__file__).parents[2]
GENERATED = frozenset({"docs/messages.md", "docs/checks.md"})  # they repeat texts of the sources
_SKIPPED = frozenset({"node_modules", "build", ".venv"})

_CODE = re.compile(r"(`+).+?\1")
_ADDRESS = re.compile(r"\]\([^)]*\)|<?\w+://[^\s>)]+>?")
_COMMENT = re.compile(r"^#+:? ?(?:type:|noqa|fmt:|pragma:|mypy:|!/).*|^#+:? ?")
# Names of code that stand in prose without backticks: a_name, a.name, CamelCase, a/path, --option, 0x1f, word=value.
_NAME = re.compile(
    r"(?<![\w-])--?\w[\w-]*|\w*[\w)\]]*[_=@\\/$#{}<>|^~+*]+[\w.,()\[\]{}\"'=/<>|:$#*-]*"
    r"|\b\w+(?:\.\w+)+\b|\b\w*[a-z0-9][A-Z]\w*|\b[A-Z]+[a-z]?\d\w*|\b\w*\d\w*"
)


def files(paths: list[str]) -> list[Path]:
    """Return the pages of `docs`, the modules of other folders, and files; a path may be a pattern such as `*.md`."""
    found: set[Path] = set()
    for pattern in paths:
        for path in sorted(ROOT.glob(pattern)):
            found |= (
                {path}
                if path.is_file()
                else {*path.rglob("*.md" if "docs" in path.relative_to(ROOT).parts else "*.py")}
            )
    chosen = [path for path in found if not _SKIPPED.intersection(path.relative_to(ROOT).parts)]
    return sorted(path for path in chosen if str(path.relative_to(ROOT)) not in GENERATED)


def prose(path: Path) -> dict[int, str]:
    """Return the prose of a file by line number."""
    text = path.read_text(encoding="utf-8")
    return markdown(text) if path.suffix == ".md" else python(text, messages="tests" not in path.parts)


def markdown(text: str) -> dict[int, str]:
    """Return the prose of Markdown: without code blocks, code spans and addresses."""
    found: dict[int, str] = {}
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            found[number] = _plain(line)
    return found


def python(text: str, messages: bool = True) -> dict[int, str]:
    """Return the comments and docstrings of a module, and its messages, which all stand on line 1."""
    found: dict[int, str] = {}
    for number, words in [*_comments(text), *_docstrings(text)]:
        found[number] = f"{found[number]} {_plain(words)}" if number in found else _plain(words)
    if messages:
        words = "  ".join(_plain(message.words) for message in collect({"module": text}))
        found[1] = f"{found.get(1, '')} {words}"
    return found


def _plain(words: str) -> str:
    without_code = _ADDRESS.sub("] ", _CODE.sub(" ", words)).replace("**", "")
    return _NAME.sub(" ", without_code)


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], _COMMENT.sub("", token.string)


def _docstrings(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                for offset, line in enumerate(first.value.value.splitlines()):
                    yield first.lineno + offset, line
