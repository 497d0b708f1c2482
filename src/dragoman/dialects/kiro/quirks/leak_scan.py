"""Follow text that may be calls written as text, and tell as soon as it cannot be that any more.

Two forms are known: `[Called NAME with args: {…}]`, and `<invoke name="NAME">` with `<parameter name="…">` in it, which
may stand inside `<function_calls>`. Several may follow one another, with nothing but white space between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from dragoman.wire.jsonscan import ObjectScanner

_NAMESPACES = ("", "antml:")
_CALLED, _WITH_ARGS = "[Called ", " with args: {"
_INVOKE = tuple(f'<{space}invoke name="' for space in _NAMESPACES)
_AROUND = tuple(f"<{slash}{space}function_calls>" for slash in ("", "/") for space in _NAMESPACES)
_PARAMETER = tuple(f'<{space}parameter name="' for space in _NAMESPACES)
_INVOKE_ENDS = tuple(f"</{space}invoke>" for space in _NAMESPACES)
_VALUE_END = re.compile("|".join(f"</{space}parameter>" for space in _NAMESPACES))
_LONGEST_END = max(len(f"</{space}parameter>") for space in _NAMESPACES)
_NAME = re.compile(r"[\w.:-]*")
_LONGEST_NAME = 200  # characters of a parameter's name


class LeakScan:
    """`feed` tells whether the text so far may still be calls of the named tools, and nothing else.

    After it has said no, `rest` is the end of the text that it has not taken, and `named` tells whether it had found
    the whole head of a call before.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._scanner = ObjectScanner()
        self._step: Callable[[], bool | None] = self._between
        self.rest = ""
        self.named = False

    def feed(self, text: str) -> bool:
        self.rest += text
        while (moved := self._step()) is True:
            pass
        return moved is None

    # A step gives True if it took something, None if it needs more text, False if this is no call.

    def _between(self) -> bool | None:
        self.rest = rest = self.rest.lstrip()
        around = next((tag for tag in _AROUND if rest.startswith(tag)), "")
        if around:
            self.rest = rest.removeprefix(around)
            return True
        if not rest or any(form.startswith(rest) for form in (_CALLED, *_INVOKE, *_AROUND)):
            return None
        if rest.startswith(_CALLED):
            return self._head(len(_CALLED), _WITH_ARGS, self._object)
        invoke = next((form for form in _INVOKE if rest.startswith(form)), "")
        return self._head(len(invoke), '">', self._inside) if invoke else False

    def _head(self, start: int, after: str, step: Callable[[], bool | None]) -> bool | None:
        """A name of a tool, and what must stand after it."""
        found = _NAME.match(self.rest, start)
        assert found is not None
        name, tail = found[0], self.rest[found.end() :]
        if not tail:
            return None if any(known.startswith(name) for known in self._names) else False
        if name not in self._names or not (tail.startswith(after) or after.startswith(tail)):
            return False
        if len(tail) < len(after):
            return None
        self.rest, self._step, self.named = tail.removeprefix(after), step, True
        if step == self._object:
            self._scanner, self.rest = ObjectScanner(), "{" + self.rest
        return True

    def _object(self) -> bool | None:
        self.rest = self._scanner.feed(self.rest)
        if not self._scanner.complete:
            return None
        self._step = self._object_end
        return True

    def _object_end(self) -> bool | None:
        if not self.rest:
            return None
        if not self.rest.startswith("]"):
            return False
        self.rest, self._step = self.rest[1:], self._between
        return True

    def _inside(self) -> bool | None:
        self.rest = rest = self.rest.lstrip()
        end = next((tag for tag in _INVOKE_ENDS if rest.startswith(tag)), "")
        if end:
            self.rest, self._step = rest.removeprefix(end), self._between
            return True
        if not rest or any(form.startswith(rest) for form in (*_INVOKE_ENDS, *_PARAMETER)):
            return None
        form = next((form for form in _PARAMETER if rest.startswith(form)), "")
        if not form:
            return False
        name, quote, tail = rest.removeprefix(form).partition('"')
        if not quote:
            return None if len(name) <= _LONGEST_NAME else False
        if not tail:
            return None
        if not tail.startswith(">"):
            return False
        self.rest, self._step = tail[1:], self._value
        return True

    def _value(self) -> bool | None:
        found = _VALUE_END.search(self.rest)
        if found is None:
            self.rest = self.rest[-(_LONGEST_END - 1) :]
            return None
        self.rest, self._step = self.rest[found.end() :], self._inside
        return True
