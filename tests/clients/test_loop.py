"""Every client, the real program or library, runs a tool loop through the gateway over every upstream dialect.

A right answer does not prove a right stream: clients hide bad ones by asking again (facts/clients.md), so the upstream's
calls are counted. The tool must really have run: only it can take the token from one file to the other and to the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.install import NotInstalled
from tests.clients.roster import Client
from tests.clients.running import Stage, loop


def test_a_tool_loop(
    client: Client,
    target: str,
    stages: Callable[[str], Stage],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    row = {"client": client.name, "version": client.version, "dialect": client.dialect, "upstream": target}
    for name, value in (*row.items(), ("streams", client.streams)):
        record_property(name, value)
    try:
        done = loop(client, stages(target), tmp_path)
    except NotInstalled as error:
        pytest.fail(str(error), pytrace=False)
    record_property("calls", len(done.asked))
    record_property("seconds", f"{done.seconds:.1f}")
    if wrong := done.wrong(client):
        where = done.keep(client, target)
        pytest.fail(f"{wrong} ({where})", pytrace=False)


@pytest.mark.parametrize("path", ["/", "/api/hello"])
def test_the_probes_of_claude_code_are_answered_at_once_and_by_us(path: str, stages: Callable[[str], Stage]) -> None:
    here = stages("openai")
    before = here.simulator.total
    status, _, body = here.home.ask(path, method="HEAD", key=None)
    assert status < 500 and not body
    assert here.simulator.total == before
