"""The prose of a file: Markdown without code but with the comments of its code blocks; comments, docstrings and messages
of Python modules; comments of other files.
"""

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
_SKIPPED = frozenset({"node_modules", "build", ".venv", "prose"})  # the last: samples of texts (tests/unit/raw_tools)

_CODE = re.compile(r"(`+).+?\1")
_ADDRESS = re.compile(r"\]\([^)]*\)|<?\w+://[^\s>)]+>?")
_COMMENT = re.compile(r"^#+:? ?(?:type:|noqa|fmt:|pragma:|mypy:|!/).*|^#+:? ?")
_CODE_COMMENT = re.compile(r"(?:^|\s)(?:#+|//|--) +(.+)$")
_JAVASCRIPT = re.compile(
    r"(?P<comment>/\*.*?\*/|(?<![:\\])//[^\n]*)|\"(?:[^\"\\\n]|\\.)*\"|`(?:[^`\\]|\\.)*`", re.DOTALL
)
# What is no prose: types of comments, values inside templates, escapes, and paths of drawings.
_TAG = re.compile(r"@(?:type|returns) \{.*|@\w+ (?:\{(?:[^{}]|\{[^{}]*\})*\} )?[\w.\[\]]*")
_ESCAPE = re.compile(r"\$\{[^{}]*\}|\\u(?:\{\w+\}|\w{4})|\\.|\b[MmLlHhVvAaZz][\d.-][^\"]*")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # where a word of a CamelCase name begins
# Names of code in prose without backticks: a_name, a.name, CamelCase, a/path, --option, 0x1f, word=value.
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
                else {
                    each
                    for suffix in (["*.md"] if "docs" in path.relative_to(ROOT).parts else ["*.py", "*.js"])
                    for each in path.rglob(suffix)
                }
            )
    chosen = [path for path in found if not _SKIPPED.intersection(path.relative_to(ROOT).parts)]
    return sorted(path for path in chosen if str(path.relative_to(ROOT)) not in GENERATED)


def prose(path: Path) -> dict[int, str]:
    """Return the prose of a file by line number."""
    text = path.read_text(encoding="utf-8")
    match path.suffix:
        case ".py":
            return python(text, messages="tests" not in path.parts)
        case ".md":
            return markdown(text)
        case ".js":
            return javascript(text)
        case _:
            return comments(text)


def markdown(text: str) -> dict[int, str]:
    """Return the prose of Markdown without code spans and addresses; of code blocks only the comments."""
    found: dict[int, str] = {}
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            found[number] = _plain(line)
        elif comment := _CODE_COMMENT.search(line):
            found[number] = _plain(comment.group(1))
    return found


def comments(text: str) -> dict[int, str]:
    """Return the comments of a Makefile, a shell script, SQL or TOML."""
    found = {number: _CODE_COMMENT.search(line) for number, line in enumerate(text.splitlines(), 1)}
    return {number: _plain(comment.group(1)) for number, comment in found.items() if comment}


def python(text: str, messages: bool = True) -> dict[int, str]:
    """Return the comments and docstrings of a module, and its messages, which are all on line 1."""
    found: dict[int, str] = {}
    for number, words in [*_comments(text), *_docstrings(text)]:
        found[number] = f"{found[number]} {_plain(words)}" if number in found else _plain(words)
    if messages:
        words = "  ".join(_plain(message.words) for message in collect({"module": text}))
        found[1] = f"{found.get(1, '')} {words}"
    return found


def javascript(text: str) -> dict[int, str]:
    """Return the comments of a JavaScript module without their types, and its texts of several words."""
    found: dict[int, str] = {}
    for token in _JAVASCRIPT.finditer(text):
        first = text.count("\n", 0, token.start()) + 1
        for number, line in enumerate(token[0].splitlines(), first):
            words = _TAG.sub(" ", line) if token["comment"] else _ESCAPE.sub(" ", line.strip('"`'))
            if token["comment"] or len(words.split()) > 1:
                found[number] = f"{found.get(number, '')} {_plain(words)}"
    return found


def names(text: str) -> dict[int, str]:
    """Return the names that a module defines, as words, by line number: `get_key` and `GetKey` are "get key"."""
    found: dict[int, str] = {}
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case _:
                continue
        words = _HUMP.sub(" ", name).replace("_", " ")
        found[node.lineno] = f"{found[node.lineno]}, {words}" if node.lineno in found else words
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
