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
_LONGEST_FORM = max(map(len, (_CALLED, *_INVOKE, *_AROUND, *_PARAMETER, *_INVOKE_ENDS)))
_SPACE = re.compile(r"\s*")
_PIECE = 1024  # characters of arguments looked at together: what follows them is not copied


class LeakScan:
    """`feed` tells whether the text so far may still be calls of the named tools, and nothing else.

    After it has said no, `left` is the number of characters at the end of the text that it has not taken, and `named`
    tells whether it had found the whole head of a call before.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._scanner = ObjectScanner()
        self._step: Callable[[], bool | None] = self._between
        self._text = ""
        self._at = 0  # what stands before is taken
        self.named = False

    @property
    def left(self) -> int:
        return len(self._text) - self._at

    def feed(self, text: str, start: int = 0) -> bool:
        """Go on with a text, from `start` on."""
        if self.left:
            text, start = self._text[self._at :] + text[start:], 0
        self._text, self._at = text, start
        while (moved := self._step()) is True:
            pass
        return moved is None

    # A step gives True if it took something, None if it needs more text, False if this is no call.

    def _between(self) -> bool | None:
        if around := self._begins(_AROUND):
            return self._take(around, self._between)
        if self._begins((_CALLED,)):
            return self._head(_CALLED, _WITH_ARGS, self._object)
        if invoke := self._begins(_INVOKE):
            return self._head(invoke, '">', self._inside)
        return self._may_begin((_CALLED, *_INVOKE, *_AROUND))

    def _begins(self, forms: tuple[str, ...]) -> str:
        """The form that stands here, behind white space."""
        space = _SPACE.match(self._text, self._at)
        self._at = self._at if space is None else space.end()
        return next((form for form in forms if self._text.startswith(form, self._at)), "")

    def _may_begin(self, forms: tuple[str, ...]) -> bool | None:
        """None if one of the forms may come to stand here, False if not."""
        rest = self._text[self._at : self._at + _LONGEST_FORM]
        return None if any(form.startswith(rest) for form in forms) else False

    def _take(self, form: str, step: Callable[[], bool | None]) -> bool:
        self._at, self._step = self._at + len(form), step
        return True

    def _head(self, form: str, after: str, step: Callable[[], bool | None]) -> bool | None:
        """A name of a tool, and what must stand after it."""
        found = _NAME.match(self._text, self._at + len(form))
        assert found is not None
        name, tail = found[0], self._text[found.end() : found.end() + len(after)]
        if not tail:
            return None if any(known.startswith(name) for known in self._names) else False
        if name not in self._names or not after.startswith(tail):
            return False
        if tail != after:
            return None
        self._scanner, self.named = ObjectScanner(), True
        is_object = after is _WITH_ARGS
        return self._take(form + name + (after[:-1] if is_object else after), step)  # the object begins with its brace

    def _object(self) -> bool | None:
        while self.left and not self._scanner.complete:
            piece = self._text[self._at : self._at + _PIECE]
            self._at += len(piece) - len(self._scanner.feed(piece))
        return self._take("", self._object_end) if self._scanner.complete else None

    def _object_end(self) -> bool | None:
        if not self.left:
            return None
        return self._take("]", self._between) if self._text.startswith("]", self._at) else False

    def _inside(self) -> bool | None:
        if end := self._begins(_INVOKE_ENDS):
            return self._take(end, self._between)
        form = self._begins(_PARAMETER)
        if not form:
            return self._may_begin((*_INVOKE_ENDS, *_PARAMETER))
        start = self._at + len(form)
        quote = self._text.find('"', start, start + _LONGEST_NAME)
        if quote < 0:
            return None if len(self._text) - start <= _LONGEST_NAME else False
        after = self._text[quote + 1 : quote + 2]
        if after != ">":
            return None if not after else False
        return self._take(self._text[self._at : quote + 2], self._value)

    def _value(self) -> bool | None:
        found = _VALUE_END.search(self._text, self._at)
        if found is None:
            self._at = max(self._at, len(self._text) - _LONGEST_END + 1)
            return None
        self._at, self._step = found.end(), self._inside
        return True
