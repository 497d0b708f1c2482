"""Questions of one worker to its siblings, over real sockets: limits, errors, and siblings that do not answer."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dragoman.gateway import worker_responses
from dragoman.gateway.admin import MAX_MESSAGE_BYTES, serve_admin
from dragoman.gateway.limits import Overloaded
from dragoman.gateway.response_store import (
    NOTHING_FOUND,
    FoundResponses,
    PickledConversation,
    ResponseHolder,
    ResponseHolders,
    ResponseStore,
)
from dragoman.gateway.shared_responses import (
    NoSharedResponses,
    SharedResponses,
    WantedResponses,
    missing_responses,
)
from dragoman.gateway.sibling_workers import Sibling, Siblings, sibling_path
from dragoman.gateway.worker_responses import FIND, FORGET, WorkerResponses
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message

T = TypeVar("T")
OWNER = "me"


def conversation(text: str) -> Conversation:
    return Conversation("m", (Message("user", (Text(text),)),))


def ignore(_: int) -> None:
    pass


class Worker:
    """What one worker stores, and its socket."""

    def __init__(self, path: Path) -> None:
        self.path, self.store, self.holders = path, ResponseStore(), ResponseHolders()
        self._responses = WorkerResponses(Siblings([]), self.store, self.holders)
        self.routes = {
            sibling_path(FIND): self._responses.answer_find,
            sibling_path(FORGET): self._responses.answer_forget,
        }

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with serve_admin(None, self.path, routes=self.routes):  # type: ignore[arg-type]
            yield


def in_group(
    folder: Path, task: Callable[[SharedResponses, list[Worker]], Awaitable[T]], extra: tuple[Path, ...] = ()
) -> T:
    """Run a task of one worker that has two siblings, and perhaps others at the paths `extra`."""

    async def run() -> T:
        workers = [Worker(folder / f"{number}.sock") for number in range(2)]
        siblings = Siblings([*extra, *(worker.path for worker in workers)])
        async with workers[0].serving(), workers[1].serving():
            try:
                found = await task(WorkerResponses(siblings, ResponseStore(), ResponseHolders()), workers)
            finally:
                await siblings.aclose()
        while len(asyncio.all_tasks()) > 1:  # only the listeners, which are cancelled: nothing else is left behind
            assert all(task.cancelling() for task in asyncio.all_tasks() - {asyncio.current_task()})
            await asyncio.sleep(0)
        return found

    return asyncio.run(run())


def test_what_several_siblings_store_is_found_together(tmp_path: Path) -> None:
    async def task(shared: SharedResponses, workers: list[Worker]) -> FoundResponses:
        one, two = workers
        one.store.keep(OWNER, "resp_1", conversation("one"), b'{"id":"resp_1"}', {"item_1": [Text("item")]})
        two.store.keep(OWNER, "resp_2", conversation("two"), b"", {"item_2": []})
        two.holders.remember("resp_3", ResponseHolder(OWNER, "up", "http://up", "key"))
        wanted = WantedResponses(OWNER, ("resp_1", "resp_2", "resp_3", "resp_4"), ("item_1", "item_2", "item_3"))
        return await shared.find(wanted, ignore)

    found = in_group(tmp_path, task)
    assert {name: each.messages[0].blocks for name, each in found.conversations.items()} == {  # type: ignore[union-attr]
        "resp_1": (Text("one"),),
        "resp_2": (Text("two"),),
    }
    assert found.items == {"item_1": [Text("item")], "item_2": []}  # an item without content is known, too
    assert found.holders == {"resp_3": ResponseHolder(OWNER, "up", "http://up", "key")} and not found.bodies


def test_bodies_are_sent_instead_of_conversations_if_they_are_wanted(tmp_path: Path) -> None:
    async def task(shared: SharedResponses, workers: list[Worker]) -> FoundResponses:
        workers[1].store.keep(OWNER, "resp_1", conversation("one"), b'{"id":"resp_1"}')
        workers[0].store.keep(OWNER, "resp_2", conversation("two"))
        return await shared.find(WantedResponses(OWNER, ("resp_1", "resp_2"), with_bodies=True), ignore)

    found = in_group(tmp_path, task)
    assert found.bodies == {"resp_1": b'{"id":"resp_1"}', "resp_2": b""} and not found.conversations


def test_another_owner_finds_nothing_and_removes_nothing(tmp_path: Path) -> None:
    async def task(shared: SharedResponses, workers: list[Worker]) -> tuple[FoundResponses, int, int]:
        workers[0].store.keep(OWNER, "resp_1", conversation("one"), b"{}", {"item_1": [Text("item")]})
        found = await shared.find(WantedResponses("other", ("resp_1",), ("item_1",)), ignore)
        await shared.forget("other", "resp_1")
        before = len(workers[0].store)
        await shared.forget(OWNER, "resp_1")
        return found, before, len(workers[0].store)

    assert in_group(tmp_path, task) == (NOTHING_FOUND, 1, 0)


def test_received_bytes_are_counted_and_an_error_of_the_count_is_raised(tmp_path: Path) -> None:
    counted: list[int] = []
    size = 300_000

    def refuse(piece: int) -> None:
        counted.append(piece)
        if sum(counted) > size // 2:
            raise Overloaded("too much")

    async def task(shared: SharedResponses, workers: list[Worker]) -> FoundResponses:
        workers[1].store.keep(OWNER, "resp_1", PickledConversation(bytes(size), ()))
        wanted = WantedResponses(OWNER, ("resp_1",))
        with pytest.raises(Overloaded):
            await shared.find(wanted, refuse)
        return await shared.find(wanted, ignore)

    found = in_group(tmp_path, task)
    assert size < found.size < size + 1000
    assert sum(counted) < size


def test_a_response_over_the_limit_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_responses, "_MAX_RESPONSE_BYTES", 100_000)

    async def task(shared: SharedResponses, workers: list[Worker]) -> FoundResponses:
        workers[1].store.keep(OWNER, "resp_1", PickledConversation(bytes(200_000), ()))
        workers[0].store.keep(OWNER, "resp_2", conversation("two"))
        return await shared.find(WantedResponses(OWNER, ("resp_1", "resp_2")), ignore)

    assert set(in_group(tmp_path, task).conversations) == {"resp_2"}


def test_a_question_over_the_limit_is_not_sent(tmp_path: Path) -> None:
    async def task(shared: SharedResponses, workers: list[Worker]) -> FoundResponses:
        wanted = WantedResponses(OWNER, (), tuple(f"item_{number:0>500}" for number in range(10_000)))
        return await shared.find(wanted, ignore)

    assert MAX_MESSAGE_BYTES < 500 * 10_000
    assert in_group(tmp_path, task) == NOTHING_FOUND


def test_siblings_that_are_gone_silent_or_of_another_version_count_as_those_without_a_response(tmp_path: Path) -> None:
    other = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as closed:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        closed.bind(str(tmp_path / "closed.sock"))
        closed.close()
        extra = (tmp_path / "silent.sock", tmp_path / "closed.sock", tmp_path / "none.sock", other)

        async def task(shared: SharedResponses, workers: list[Worker]) -> tuple[set[str], FoundResponses]:
            workers[1].store.keep(OWNER, "resp_1", conversation("one"))
            async with serve_admin(None, other, routes={}):  # type: ignore[arg-type]
                found = await shared.find(WantedResponses(OWNER, ("resp_1",)), ignore)
                unknown = await shared.find(WantedResponses(OWNER, ("resp_2",)), ignore)
                await shared.forget(OWNER, "resp_1")
            assert len(workers[1].store) == 0
            return set(found.conversations), unknown

        assert in_group(tmp_path, task, extra) == ({"resp_1"}, NOTHING_FOUND)


def test_a_message_is_sent_again_until_the_sibling_answers(tmp_path: Path) -> None:
    async def run() -> None:
        worker = Worker(tmp_path / "late.sock")
        worker.store.keep(OWNER, "resp_1", conversation("one"))
        siblings = Siblings([worker.path])
        shared = WorkerResponses(siblings, ResponseStore(), ResponseHolders())
        forgetting = asyncio.create_task(shared.forget(OWNER, "resp_1"))
        while not siblings._tasks:
            await asyncio.sleep(0)
        async with worker.serving():
            while len(worker.store):
                await asyncio.sleep(0.01)
            await forgetting
            await siblings.aclose()

    asyncio.run(run())


def test_a_cancelled_question_leaves_nothing_behind(tmp_path: Path) -> None:
    async def run() -> None:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(tmp_path / "silent.sock"))
            silent.listen()
            siblings = Siblings([tmp_path / "silent.sock"])
            shared = WorkerResponses(siblings, ResponseStore(), ResponseHolders())
            asking = asyncio.create_task(shared.find(WantedResponses(OWNER, ("resp_1",)), ignore))
            while len(asyncio.all_tasks()) < 3:
                await asyncio.sleep(0)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            assert len(asyncio.all_tasks()) == 1
            await siblings.aclose()

    asyncio.run(run())


def test_a_connection_to_a_sibling_is_kept(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        worker = Worker(tmp_path / "one.sock")
        async with worker.serving():
            sibling = Sibling(worker.path)
            for _ in range(5):
                assert await sibling.request(FIND, b'{"owner":"me"}') == b""
            pools = sibling._client.pools()
            await sibling.aclose()
        return [(pool.active, pool.idle) for pool in pools]

    assert asyncio.run(run()) == [(0, 1)]


def test_only_what_this_process_does_not_know_is_asked_for() -> None:
    store, holders = ResponseStore(), ResponseHolders()
    store.keep(OWNER, "resp_1", conversation("one"), b"", {"item_1": []})
    holders.remember("resp_2", ResponseHolder("other", "up", "http://up", "key"))  # of any owner
    wanted = WantedResponses(OWNER, ("resp_1", "resp_2", "resp_3", "x" * 600), ("item_1", "item_2", "y" * 600))
    assert missing_responses(wanted, store, holders) == WantedResponses(OWNER, ("resp_3",), ("item_2",))


def test_one_process_finds_nothing_elsewhere() -> None:
    async def run() -> FoundResponses:
        shared: SharedResponses = NoSharedResponses()
        await shared.forget(OWNER, "resp_1")
        return await shared.find(WantedResponses(OWNER, ("resp_1",)), ignore)

    assert asyncio.run(run()) == NOTHING_FOUND
    assert pickle.loads(pickle.dumps(NOTHING_FOUND)) == NOTHING_FOUND
