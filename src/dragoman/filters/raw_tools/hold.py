"""Hold: text from a marker on, as long as it is not certain whether it is a call."""

from __future__ import annotations

from dragoman.filters.raw_tools.names import Ids
from dragoman.filters.raw_tools.outputs import Output, Remark
from dragoman.filters.raw_tools.prose import Quotation


class Hold:
    """All that was read since a marker. In the end `raw` goes out as text, or `out` instead of it.

    `quotation`: something was open before the marker; if it is closed after the calls, they are text.
    `strict`: the calls count only if they are whole, their tools declared and what these require is there.
    """

    __slots__ = (
        "_begin",
        "_body",
        "_raw",
        "_size",
        "calls",
        "calls_before",
        "completed_before",
        "fits",
        "ids",
        "line",
        "noise",
        "out",
        "outer",
        "quotation",
        "strays",
        "strict",
    )

    def __init__(self, outer: list[Output], begin: int, quotation: Quotation | None = None) -> None:
        self.outer = outer  # where outputs went before, and go again
        self.out: list[Output] = []
        self.quotation = quotation
        self.strict = False
        self.strays: list[str] = []  # markers on their own
        self.noise = False  # other text stood between the markers
        self.line = ""  # since the last line end or call, where a quotation may be closed
        self.calls = 0
        self.fits = True  # every call so far may count though it is quoted or bare
        self.ids: Ids | None = None  # those to go back to
        self.calls_before = self.completed_before = 0
        self._raw: list[str] = []  # of texts before this one
        self._size = 0
        self._begin = begin  # where it begins in the text that is read now
        self._body = -1

    @property
    def is_call(self) -> bool:
        """Whether the arguments of a call have begun."""
        return self._body >= 0

    @property
    def counts(self) -> bool:
        """Whether what was read are calls beyond doubt."""
        return self.calls > 0 and self.fits

    def size(self, end: int) -> int:
        """How many characters are held, up to a place in the text that is read now."""
        return self._size + end - self._begin

    def begin_body(self, at: int) -> None:
        """The arguments of a call begin at a place in the text that is read now."""
        self._body = self.size(at)

    def body_size(self, end: int) -> int:
        """How many characters of these arguments are held."""
        return self.size(end) - self._body

    def text(self, text: str, end: int) -> str:
        """All that is held, up to a place in the text that is read now."""
        return "".join(self._raw) + text[self._begin : end]

    def keep(self, text: str, end: int) -> int:
        """Take what was read of a text, of which the rest is seen again; return how much is held."""
        self._raw.append(text[self._begin : end])
        self._size = self.size(end)
        self._begin = 0
        return self._size

    def remember(self, ids: Ids, calls: int, completed: int) -> None:
        """Keep what a call that may turn out to be text would change."""
        self.ids, self.calls_before, self.completed_before = ids, calls, completed

    @property
    def at_once(self) -> int | None:
        """Where all that is held begins in the text that is read now; None if it began in a text before."""
        return None if self._raw else self._begin

    def settled(self) -> list[Output]:
        """What goes out if it is a call: the outputs, and a remark for everything that does not."""
        remarks: list[Output] = [stray(literal) for literal in self.strays]
        if self.noise:
            remarks.append(Remark("noise", "text between the markers of a section was left out"))
        return [*remarks, *self.out]


def stray(literal: str) -> Remark:
    return Remark("stray_marker", f"{literal} stood on its own and was removed")
