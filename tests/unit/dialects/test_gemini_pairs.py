"""S3: results find their calls in any order, and that takes no time with the square of their number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.dialects.gemini.pairs import Pairs
from tests.growth import Work, grows_linearly

IDS = st.sampled_from(["", "a", "b", "call_gemini_1", "call_gemini_2"])
TOOL_NAMES = st.sampled_from(["f", "g"])


class Plainly:
    """The same by looking through all that wait."""

    def __init__(self) -> None:
        self.ids = Pairs()
        self.names: set[str] = set()
        self.waiting: list[tuple[str, str]] = []

    def called(self, call_id: str, name: str) -> None:
        self.names.add(call_id)
        self.waiting.append((call_id, name))

    def answered(self, call_id: str, name: str) -> str:
        place = 0 if call_id in self.names else 1
        wanted = call_id if call_id in self.names else name
        found = next((each for each in self.waiting if each[place] == wanted), None)
        if found is not None:
            self.waiting.remove(found)
        return call_id if call_id in self.names else found[0] if found else call_id


@given(st.lists(st.tuples(st.booleans(), IDS, TOOL_NAMES), max_size=30))
def test_a_result_answers_the_first_call_that_waits(told: list[tuple[bool, str, str]]) -> None:
    pairs, plainly = Pairs(), Plainly()
    for is_call, call_id, name in told:
        if is_call:
            plainly.called(pairs.called(call_id, name), name)
            continue
        answered, expected = pairs.answered(call_id, name), plainly.answered(call_id, name)
        assert answered == expected or not expected  # with neither an id nor a call, one is made


def reversed_by_id(count: int) -> Work:
    def work() -> None:
        pairs = Pairs()
        ids = [pairs.called(f"{number}", "f") for number in range(count)]
        for call_id in reversed(ids):
            pairs.answered(call_id, "f")

    return work


def reversed_by_name(count: int) -> Work:
    def work() -> None:
        pairs = Pairs()
        for number in range(count):
            pairs.called("", f"f{number}")
        for number in reversed(range(count)):
            pairs.answered("", f"f{number}")

    return work


def test_s3_results_in_reverse_order_take_no_square_time() -> None:
    grows_linearly(reversed_by_id, 200)
    grows_linearly(reversed_by_name, 200)
