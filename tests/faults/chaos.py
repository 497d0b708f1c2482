"""Fault 61: a crowd of clients of every dialect, some of them killed at random; nobody hears the words of another."""

from __future__ import annotations

import random
import threading
import time

from dragoman.simulator import Simulator, parse
from tests.faults.judging import hear
from tests.faults.leaving import leave
from tests.faults.listening import Hung, Lost, Wrong, connect, listen, written
from tests.faults.stage import (
    CLIENTS,
    UPSTREAMS,
    Case,
    Pair,
    configuration,
    nothing_left,
    question,
    running,
    settled,
    tasks_of,
)
from tests.faults.table import Row
from tests.gateway.house import House, house


class Crowd:
    """Clients of every dialect, asking over and over, each of them killed now and then."""

    def __init__(self, case: Case, home: House, models: int, kill: float) -> None:
        self.case, self.home, self.models, self.kill = case, home, models, kill
        self.asked = self.killed = self.answered = 0
        self.troubles: list[AssertionError] = []
        self._lock = threading.Lock()

    def run(self, number: int, until: float) -> None:
        dice = random.Random(number)
        while time.monotonic() < until:
            with self._lock:
                self.asked += 1
                mark = f"mark{self.asked:06d}"
            client, model = dice.choice(CLIENTS), f"m{dice.randrange(self.models)}"
            leaves = dice.random() < self.kill
            try:
                self._one(client, model, mark, dice.random() * 0.3 if leaves else None, reset=dice.random() < 0.5)
            except AssertionError as error:
                self.troubles.append(error)

    def _one(self, client: str, model: str, mark: str, leaves_after: float | None, *, reset: bool) -> None:
        with connect(self.home.url, 20) as sock:
            began = time.monotonic()
            text = f"{mark} " * 12
            sock.sendall(written(self.home.url, question(client, model, text), self.home.key, connection="close"))
            if leaves_after is not None:
                sock.settimeout(leaves_after + 0.001)
                try:
                    while time.monotonic() - began < leaves_after and sock.recv(4096):
                        pass
                except (TimeoutError, OSError):
                    pass
                leave(sock, reset=reset)
                self.killed += 1
                return
            told = listen(sock, began, 20)
            if told.status != 200:
                raise Wrong(f"{told.status}: {told.body[:200]!r}")
            heard = hear(client, told, stream=True)
            if heard.error or not heard.ended:
                raise Lost(f"{client}: {heard.error or 'no end'}")
            others = {word for word in heard.text.split() if word.startswith("mark")} - {mark}
            if others or heard.text.count(mark) != 12:
                raise Wrong(f"{client} asked with {mark} and heard {heard.text!r}")
            self.answered += 1


def chaos(case: Case) -> None:
    """500 streams for five minutes, scaled: 60 clients at once for 15 s, each request killed with a chance of 0.1."""
    clients, seconds = (60, 15.0) if case.whole else (16, 2.0)
    simulators = [Simulator(name, script=parse("[pace]\nchunk = 8\ndelay = 0.002\n")) for name in UPSTREAMS]
    with case.probe("nothing is left over"), nothing_left(), running(simulators):
        text = configuration(
            [(name, each.url) for name, each in zip(UPSTREAMS, simulators, strict=True)], "limits.concurrency = 256"
        )
        with house(text, case.folder_for("chaos")) as home:
            tasks = tasks_of(home)
            crowd = Crowd(case, home, len(UPSTREAMS), 0.1)
            until = time.monotonic() + seconds
            threads = [threading.Thread(target=crowd.run, args=(number, until)) for number in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                if thread.is_alive():
                    raise Hung("a client is still waiting")
            case.probes += crowd.asked
            for trouble in crowd.troubles:
                kind = {Hung: "hung", Lost: "lost"}.get(type(trouble), "wrong")
                case.troubles.append((kind, str(trouble)[:300]))
            if not crowd.answered or not crowd.killed:
                raise Wrong(f"{crowd.answered} answered, {crowd.killed} killed: nothing was tried")
            settled(home, tasks, crowd.asked)


ROWS = [
    Row(
        61,
        "chaos: streams killed at random (scaled)",
        "none lost, none mixed, nothing left",
        chaos,
        [Pair("anthropic", "openai")],
    ),
]
