"""Collect every message that a user can see into docs/messages.md: `python -m tests.messages [--check]`.

The collector reads the syntax trees of all modules of the package, so it needs no list of modules or helper functions. A
message is a string literal that looks like a sentence: an argument of an exception, of a note, of a logger, of argparse's
`help`, a row of a table of rules, or any other text. These are no messages: what is compared or searched for, keys of
mappings, phrases of services, shell scripts and lists of keywords (constants whose name ends with PHRASE, PHRASES,
SCRIPT or KEYWORDS), members of an Enum, types, paths, media types, lines of HTTP, SQL, and sample conversations.

A message is shown as a user sees it: the parts of an f-string that are texts themselves (a constant, a local name that is
only bound to texts, `x if y else z`) are written into it, alternatives as `(one / other)` and optional parts as `[part]`.
Other placeholders are shown in braces. `--check` compares the page with the sources.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "messages.md"
HEAD = """# Messages

Every message that a user can see, by module: errors, notes, rules, log lines, help texts and output of commands.
Words in braces are filled in at run time; of `(one / other)` one part is written, and `[this]` may be left out.
`python -m tests.messages` writes this page from the sources.
"""

_NOTE_METHODS = frozenset({"added", "changed", "dropped", "renamed", "add"})
_LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_LOGGERS = re.compile(r"(?i)^_?log(?:ger)?$")
_HELP_KEYWORDS = frozenset({"help", "description", "epilog", "usage"})
_PATTERN_FUNCTIONS = frozenset(
    {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
)
_RULE = re.compile(r"[a-z_0-9]+(?:\.[a-z_0-9]+)+")
_RULE_ROW = re.compile(r"^[\w.]+ \| \w+ \| (?:error|advice) \| (.+)$", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z][a-z']+")
_NO_PROSE = re.compile(
    r"^\s*(?:\{\w+\})?[<\[(\\]|\(\?|^[A-Z_]+$|^[\w.+-]+/[\w.+-]+(?:[;,] |$)|<\||\r\n|^\w+=\S+;"
    r"|^(?:SELECT|UPDATE|INSERT|CREATE|PRAGMA|BEGIN|Bearer)\b|\b(?:DELETE FROM|ORDER BY|WHEN|AND|OR|NULL)\b"
    r"|^\w+(?:, (?:\w+|\{\w+\}))+,?$"
)
_NOT_MESSAGES = ("_PHRASE", "_PHRASES", "_SCRIPT", "_KEYWORDS")  # the ends of names of constants
_SAMPLES = frozenset(
    {
        "dragoman.conformance.samples",
        "dragoman.filters.raw_tools.learning.pieces",
        "dragoman.filters.raw_tools.learning.probes",
    }
)
_SEARCHES = frozenset({"startswith", "endswith", "find", "index", "count", "split", "removeprefix", "removesuffix"})


@dataclass(frozen=True)
class Message:
    """One message: the module that holds it, its kind (error, note, rule, log, help or text), and its words."""

    module: str
    kind: str
    words: str


def exception_names(trees: list[ast.Module]) -> frozenset[str]:
    """Return the names of built-in exceptions and of all classes that derive from one, by name."""
    found = {
        name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
    }
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    size = 0
    while size != len(found):
        size = len(found)
        found |= {each.name for each in classes if any(_last_name(base) in found for base in each.bases)}
    return frozenset(found)


def collect(sources: dict[str, str]) -> list[Message]:
    """Return the messages of modules, given as their sources by name, in source order and each once per module."""
    trees = {name: ast.parse(source) for name, source in sources.items() if name not in _SAMPLES}
    exceptions = exception_names(list(trees.values()))
    constants = {name: _constants(tree) for name, tree in trees.items()}
    found: list[Message] = []
    for name, tree in trees.items():
        collector = _Collector(exceptions, _imported(tree, constants))
        collector.walk(tree)
        found += [Message(name, kind, words) for kind, words in collector.found]
    return found


class _Collector:
    """Walk one syntax tree. The nearest call around a string decides its kind."""

    def __init__(self, exceptions: frozenset[str], imported: dict[str, list[ast.expr]]) -> None:
        self._exceptions = exceptions
        self._texts = _Texts(imported)
        self.found: dict[tuple[str, str], None] = {}  # kind and words, in source order

    def walk(self, node: ast.AST, kind: str = "text") -> None:
        """Add the messages below a node."""
        match node:
            case ast.Constant(value=str(words)) if _RULE_ROW.search(words):
                for sentence in _RULE_ROW.findall(words):
                    self._add("rule", sentence)
            case ast.Constant(value=str(words)):
                self._add(kind, words)
            case ast.JoinedStr() | ast.BinOp(op=ast.Add()) if (text := self._texts.words(node)) is not None:
                if _is_message(text.lstrip("(["), kind):  # alternatives may begin it
                    self.found[kind, text] = None
                for value in self._texts.other_values(node):
                    self.walk(value, kind)
            case ast.Call():
                self._walk_call(node, kind)
            case ast.ClassDef(bases=[ast.Name(id="Enum")]) | ast.FunctionDef(name="__repr__"):
                return
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if name.endswith(
                _NOT_MESSAGES
            ) or self._texts.is_only_a_part(name):
                return
            case ast.Module() | ast.FunctionDef() | ast.AsyncFunctionDef():
                with self._texts.scope(node):
                    for child in _children(node):
                        self.walk(child, kind)
            case ast.Dict():
                keys = [key for key in node.keys if key is not None and not isinstance(key, ast.Constant)]
                for value in (*keys, *node.values):
                    self.walk(value, kind)
            case _:
                for child in _children(node):
                    self.walk(child, kind)

    def _add(self, kind: str, words: str) -> None:
        if _is_message(words, kind):
            self.found[kind, words] = None

    def _walk_call(self, call: ast.Call, around: str) -> None:
        if _is_pattern(call) or _is_search(call):
            return
        kind = self._kind(call) or around
        self.walk(call.func, around)
        for argument in call.args[_last_name(call.func) == "cast" :]:  # The first argument of `cast` is a type.
            self.walk(argument, kind)
        for keyword in call.keywords:
            self.walk(keyword.value, "help" if keyword.arg in _HELP_KEYWORDS and kind != "error" else kind)

    def _kind(self, call: ast.Call) -> str:
        name = _last_name(call.func)
        if name in self._exceptions:
            return "error"
        if isinstance(call.func, ast.Attribute):
            holder = _last_name(call.func.value)
            if name in _LOG_METHODS and _LOGGERS.match(holder):
                return "log"
            first = call.args[0] if call.args else None
            named = isinstance(first, ast.Constant) and isinstance(first.value, str) and _RULE.fullmatch(first.value)
            if name in _NOTE_METHODS and named:
                return "note"
        return ""


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the texts and numbers that a module binds to names, once each."""
    found = [(node.targets[0], node.value) for node in tree.body if isinstance(node, ast.Assign)]
    counts = Counter(each.id for each in _own_nodes(tree) if _is_store(each))
    return {
        target.id: value
        for target, value in found
        if isinstance(target, ast.Name)
        and counts[target.id] == 1
        and isinstance(value, ast.Constant)
        and not target.id.startswith("__")  # the version
    }


def _imported(tree: ast.Module, constants: dict[str, dict[str, ast.expr]]) -> dict[str, list[ast.expr]]:
    """Return the constants that a module imports from others, by the names that they have in it."""
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {
        each.asname or each.name: [constants[node.module or ""][each.name]]
        for node in imports
        for each in node.names
        if each.name in constants.get(node.module or "", {})
    }


class _Texts:
    """The texts that names are bound to, in the scopes around the current node, and f-strings with those texts."""

    def __init__(self, imported: dict[str, list[ast.expr]]) -> None:
        self._scopes: list[dict[str, list[ast.expr]]] = [imported]
        self._parts: list[frozenset[str]] = []  # names that are used in other texts only
        self._open: set[str] = set()  # names whose texts are being read

    @contextmanager
    def scope(self, node: ast.AST) -> Iterator[None]:
        """Add the names that a module or a function binds."""
        bound: dict[str, list[ast.expr]] = {}
        for each in _own_nodes(node):
            match each:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    bound.setdefault(name, []).append(value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    bound.setdefault(name, []).append(value)
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    bound.setdefault(name, [])
                case _:
                    pass
        stores = Counter(each.id for each in _own_nodes(node) if _is_store(each))
        known = {name: values for name, values in bound.items() if len(values) == stores[name]}
        self._scopes.append({name: known.get(name, []) for name in bound})
        is_function = not isinstance(node, ast.Module)
        self._parts.append(self._only_parts(node, known) if is_function else frozenset())
        yield
        self._scopes.pop()
        self._parts.pop()

    def _only_parts(self, node: ast.AST, bound: dict[str, list[ast.expr]]) -> frozenset[str]:
        """Return the names that are bound to texts, all of whose uses are in f-strings and sums of texts."""
        uses = Counter(each.id for each in ast.walk(node) if _is_load(each))
        texts = (each for each in ast.walk(node) if isinstance(each, ast.JoinedStr | ast.BinOp) and self.words(each))
        inside = Counter(name for text in texts for name in _names_in(text))
        return frozenset(name for name in bound if 0 < uses[name] == inside[name] and self._of_name(name) is not None)

    def is_only_a_part(self, name: str) -> bool:
        """Return whether the texts of a name are shown in the messages that contain them, and nowhere else."""
        return bool(self._parts) and name in self._parts[-1]

    def words(self, node: ast.expr) -> str | None:
        """Return the text of an f-string, a literal, a condition or a sum of them; None for other values."""
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr(values=values):
                return "".join(self._part(value) for value in values)
            case ast.IfExp(body=body, orelse=other):
                return _either([self.words(body), self.words(other)])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                texts = self.words(left), self.words(right)
                return None if texts[0] is None or texts[1] is None else texts[0] + texts[1]
            case ast.Name(id=name):
                return self._of_name(name)
            case _:
                return None

    def _part(self, part: ast.expr) -> str:
        if not isinstance(part, ast.FormattedValue):
            return str(part.value) if isinstance(part, ast.Constant) else ""
        return self._value(part.value)

    def _value(self, value: ast.expr) -> str:
        """Return what an f-string shows for a value: its text, alternatives, or a placeholder."""
        text = self.words(value)
        match value:
            case ast.BoolOp(op=ast.Or(), values=values) if text is None:
                text = _either([self._value(each) for each in values])
            case ast.IfExp(body=body, orelse=other) if text is None:
                text = _either([self._value(body), self._value(other)])
            case _:
                pass
        return _placeholder(value) if text is None else text

    def _of_name(self, name: str) -> str | None:
        values = next((scope[name] for scope in reversed(self._scopes) if name in scope), [])
        if not values or name in self._open:
            return None
        self._open.add(name)
        found = [str(value.value) if _is_number(value) else self.words(value) for value in values]
        self._open.discard(name)
        return _either(found)

    def other_values(self, node: ast.expr) -> Iterator[ast.expr]:
        """Yield the values of an f-string or a sum that are no texts: they may contain messages."""
        for part in ast.walk(node):
            if not isinstance(part, ast.FormattedValue) or self.words(part.value) is not None:
                continue
            if not isinstance(part.value, ast.BoolOp | ast.IfExp):
                yield part.value


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below a module or a function that are not inside another function or class."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _own_nodes(child)


def _is_store(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_load(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _is_number(node: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _names_in(text: ast.expr) -> Iterator[str]:
    """Yield the names that an f-string or a sum of texts contains directly, each as often as it is used."""
    match text:
        case ast.JoinedStr(values=values):
            parts = [part.value for part in values if isinstance(part, ast.FormattedValue)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [left, right]
        case _:
            parts = []
    yield from (part.id for part in parts if isinstance(part, ast.Name))


def _either(texts: list[str | None]) -> str | None:
    """Return alternatives as `(one / other)`, and as `[one]` if the other is empty; None if one is unknown."""
    known = [text for text in dict.fromkeys(texts) if text is not None]
    if None in texts:
        return None
    shown = [text for text in known if text]
    if len(known) == 1:
        return known[0]
    joined = " / ".join(shown)
    return f"[{joined}]" if "" in known else f"({joined})"


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children of a node without its docstring, annotations, and strings that it compares or uses as paths."""
    body = getattr(node, "body", None)
    skipped: list[object] = []
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(body, list):
        is_text = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        skipped = body[:1] if is_text else []
    if isinstance(node, ast.AnnAssign):
        skipped += [node.annotation, node.value] if _last_name(node.annotation) == "TypeAlias" else [node.annotation]
    if isinstance(node, ast.Compare) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
        skipped += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.Constant)]
    for child in ast.iter_child_nodes(node):
        is_literal_type = isinstance(child, ast.Subscript) and _last_name(child.value) in ("Literal", "Annotated")
        if child not in skipped and not is_literal_type and not _is_bare_text(child):
            yield child


def _is_bare_text(node: ast.AST) -> bool:
    """Return whether a statement is only a string: documentation of an attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_pattern(call: ast.Call) -> bool:
    """Return whether a call takes a regular expression."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _PATTERN_FUNCTIONS:
        return False
    return _last_name(call.func.value) == "re"


def _is_search(call: ast.Call) -> bool:
    """Return whether a call only searches or splits texts, such as `"…".split()` and `text.startswith("…")`."""
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr in _SEARCHES
        and all(isinstance(each, ast.Constant | ast.Tuple) for each in call.args)
        and (isinstance(call.func.value, ast.Constant | ast.Name | ast.Attribute))
    )


def _placeholder(value: ast.AST) -> str:
    """Return a short name for the value of a placeholder."""
    name = _last_name(value.func) if isinstance(value, ast.Call) else _last_name(value)
    return "{" + (name.strip("_") or "…") + "}"


def _is_message(words: str, kind: str) -> bool:
    """Return whether a text is for people: at least two words, or one word of help."""
    if kind == "help":
        return bool(_WORD.search(words))
    if _NO_PROSE.search(words) or _RULE.fullmatch(words.strip()):
        return False
    plain = re.sub(r"\{[^}]*\}", " ", words)
    return len(_WORD.findall(plain)) >= 2 and bool(re.search(r"[A-Za-z…}'\"`),;:] +[A-Za-z{'\"`(]", words))


def render(found: list[Message]) -> str:
    """Return the page: one table for each module."""
    lines = [HEAD]
    module = ""
    for message in found:
        if message.module != module:
            module = message.module
            lines.append(f"\n## {module}\n\n| kind | message |\n|---|---|")
        lines.append(f"| {message.kind} | {_cell(message.words)} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _cell(words: str) -> str:
    """Return a message as a table cell: markup characters escaped, line ends replaced by spaces."""
    shown = " ".join(words.split()).replace("\\", "\\\\").replace("|", "\\|")
    return re.sub(r"([<*_])", r"\\\1", shown)


def sources(package: Path = ROOT / "src") -> dict[str, str]:
    """Return the source of each module of the package by its dotted name."""
    found: dict[str, str] = {}
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        found[name] = path.read_text(encoding="utf-8")
    return found


def main(arguments: list[str]) -> int:
    """Write the page, or compare it with the sources; return 1 if it is out of date."""
    page = render(collect(sources()))
    if "--check" not in arguments:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    print(
        "docs/messages.md does not match the sources. Run `python -m tests.messages` and commit the page.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
