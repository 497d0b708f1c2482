"""S3: text that is full of what may begin a tag is read in time that grows with its length, not with its square."""

from __future__ import annotations

import pytest

from dragoman.filters.raw_tools import Engine, Tools
from dragoman.model.conversation import ToolSpec
from tests.growth import Work, grows_linearly

TYPED = [ToolSpec("f", "", {"type": "object", "properties": {"a": {"type": "string"}}})]
CALLS = {
    "qwen": "<function=f>\n<parameter=a>\nx\n</parameter>\n",
    "invoke": '<function_calls><invoke name="f"><parameter name="a">x</parameter>',
}
ENDS = {"qwen": "</function>", "invoke": "</invoke>"}


@pytest.mark.parametrize("stray", ["<", "</a "])
@pytest.mark.parametrize("form", CALLS)
def test_s3_strays_after_a_parameter_take_no_square_time(form: str, stray: str) -> None:
    def work(count: int) -> Work:
        text = CALLS[form] + stray * count + ENDS[form]
        return lambda: Engine("auto", Tools(TYPED)).feed(text)

    grows_linearly(work, 500)
