"""Scripts: what a file says, in which order it is played, and errors that name the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.errors import LocalMisuse
from dragoman.model.conversation import Why
from dragoman.simulator.script import Cut, Emit, Pace, Player, Raise, Reason, Refuse, Say, Turn, Use, Wait, load, parse

FULL = """
then = "last"

[pace]
chunk = 5
delay = 0.5

[tokens]
access = ["a"]
lifetime = 2.5
uses = 3

[[turn]]
text = "Hello"
chunk = 1

[[turn]]
stop = "tool"
quirks = ["object_input"]
cut = { byte = 10, how = "reset" }
parts = [
  { reasoning = "hm" },
  { text = "I look." },
  { tool = "read", arguments = { path = "a" }, id = "t1" },
  { tool = "broken", arguments = '{"a":' },
  { wait = 0.1 },
  { event = "codeEvent", data = { content = "x" } },
  { exception = "ThrottlingException", message = "slow down", reason = "R" },
]

[[turn]]
status = [429, 503, 200]
retry_after = 1.5
message = "no"
"""


def test_a_full_script_says_what_it_says() -> None:
    script = parse(FULL)
    hello, rich, *refusals, last = script.turns
    assert hello == Turn(parts=(Say("Hello"),), pace=Pace(chunk=1, delay=0.5))
    assert rich.parts == (
        Reason("hm"),
        Say("I look."),
        Use("read", '{"path":"a"}', "t1"),
        Use("broken", '{"a":'),
        Wait(0.1),
        Emit("codeEvent", {"content": "x"}),
        Raise("ThrottlingException", "slow down", "R"),
    )
    assert (rich.stop, rich.cut, rich.quirks) == (Why.TOOL, Cut(byte=10, how="reset"), frozenset({"object_input"}))
    assert [turn.refuse for turn in refusals] == [
        Refuse(429, "no", retry_after=1.5),
        Refuse(503, "no", retry_after=1.5),
    ]
    assert (last.refuse, last.parts) == (None, None)
    assert (script.tokens.access, script.tokens.lifetime, script.tokens.uses) == (["a"], 2.5, 3)


@pytest.mark.parametrize(
    ("then", "texts"),
    [("model", ["a", "b", None, None]), ("repeat", ["a", "b", "a", "b"]), ("last", ["a", "b", "b", "b"])],
)
def test_what_follows_the_last_turn(then: str, texts: list[str | None]) -> None:
    player = Player(parse(f'then = "{then}"\n[[turn]]\ntext = "a"\n[[turn]]\ntext = "b"'))
    turns = [player.next() for _ in texts]
    assert [turn.parts for turn in turns] == [None if text is None else (Say(text),) for text in texts]


def test_times_repeats_a_turn() -> None:
    assert len(parse("[[turn]]\nstatus = [500, 200]\ntimes = 3").turns) == 6


WRONG = (
    ("[[turn]]\ntxt = 'a'", r"s: turn\[0\]: Object contains unknown field `txt`"),
    ("[[turn]]\ntext = 'a'\n[[turn]]\nchunk = 'x'", r"s: turn\[1\]\.chunk: Expected `int \| null`, got `str`"),
    ("[[turn]]\nparts = [{ text = 'a' }, { text = 'a', tool = 'b' }]", r"s: turn\[0\]\.parts\[1\]: .*exactly one of"),
    ("[[turn]]\nparts = [{ }]", r"s: turn\[0\]\.parts\[0\]: .*exactly one of"),
    ("[[turn]]\nparts = [{ text = 'a', arguments = { } }]", r"s: turn\[0\]\.parts\[0\]: .*takes no `arguments`"),
    ("[[turn]]\ntext = 'a'\nparts = []", r"s: turn\[0\]: .*not both"),
    ("[[turn]]\ncut = { how = 'end' }", r"s: turn\[0\]\.cut: a cut is at"),
    ("[[turn]]\ncut = { byte = 1, event = 1 }", r"s: turn\[0\]\.cut: a cut is at"),
    ("[[turn]]\ncut = { byte = -1 }", r"s: turn\[0\]\.cut: expected at least 0"),
    ("[[turn]]\ncut = { byte = 1, how = 'gently' }", r"s: turn\[0\]\.cut\.how: Invalid enum value 'gently'"),
    ("[[turn]]\nstatus = 99", r"s: turn\[0\]\.status: 99 is no status"),
    ("[[turn]]\nchunk = 0", r"s: turn\[0\]\.chunk: expected at least 1"),
    ("[[turn]]\ntimes = 0", r"s: turn\[0\]\.times: expected 1 to"),
    ("[[turn]]\nquirks = ['odd']", r"s: turn\[0\]\.quirks: no quirk 'odd' \(known: bare_fragments"),
    ("[pace]\nwrite = -1", r"s: pace\.write: expected at least 0"),
    ("then = 'repeat'", r"s: then: 'repeat' needs a turn"),
    ("[[turn]\n", r"s is no TOML: .*line 1"),
)  # fmt: skip


@pytest.mark.parametrize(("text", "complaint"), WRONG)
def test_a_wrong_script_is_refused_by_naming_the_place(text: str, complaint: str) -> None:
    with pytest.raises(LocalMisuse, match=complaint):
        parse(text, "s")


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalMisuse, match=r"cannot read the script .*none\.toml"):
        load(tmp_path / "none.toml")
