"""The gateway in another program: `dragoman.load_config`, and `dragoman.asgi` of each kind of configuration under uvicorn."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import anthropic
import pytest
import uvicorn

import dragoman
from dragoman.simulator import Simulator, parse_script, running_simulator
from tests.gateway.harness import TIMEOUT, wait_until

KEY = "dgm_the-key-of-the-embedding-program"
Source: TypeAlias = str | os.PathLike[str] | dict[str, Any] | dragoman.Config | None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, with the keys that the configurations name."""
    for name in [name for name in os.environ if name.startswith(("DRAGOMAN_", "XDG_"))]:
        monkeypatch.delenv(name)
    for name, value in {"HOME": str(tmp_path), "GATEWAY_KEY": KEY, "UPSTREAM_KEY": "any"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with running_simulator("openai", script=parse_script('then = "last"\n[[turn]]\ntext = "Hello there."')) as running:
        yield running


def tables(simulator: Simulator) -> dict[str, Any]:
    upstream = {"dialect": "openai", "base_url": simulator.url, "key": "env:UPSTREAM_KEY", "default_model": "gpt-5"}
    return {"server": {"key": "env:GATEWAY_KEY"}, "upstreams": {"main": upstream}}


def toml_file(simulator: Simulator, folder: Path) -> Path:
    path = folder / "gateway.toml"
    upstream = tables(simulator)["upstreams"]["main"]
    lines = [f"{name} = {json.dumps(value)}" for name, value in upstream.items()]
    path.write_text("\n".join(['server = { key = "env:GATEWAY_KEY" }', "[upstreams.main]", *lines, ""]))
    return path


def default_file(simulator: Simulator, folder: Path) -> None:
    (folder / ".config" / "dragoman").mkdir(parents=True)
    toml_file(simulator, folder).rename(folder / ".config" / "dragoman" / "config.toml")


SOURCES: dict[str, Callable[[Simulator, Path], Source]] = {
    "path": toml_file,
    "text": lambda simulator, folder: str(toml_file(simulator, folder)),
    "relative": lambda simulator, folder: toml_file(simulator, folder).name,
    "mapping": lambda simulator, folder: tables(simulator),
    "config": lambda simulator, folder: dragoman.load_config(tables(simulator)),
    "default": default_file,
}


@pytest.mark.parametrize("source", SOURCES)
def test_uvicorn_serves_the_application_of_any_configuration(source: str, simulator: Simulator, home: Path) -> None:
    application = dragoman.asgi(SOURCES[source](simulator, home))
    assert application.key == KEY
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_config=None, access_log=False, lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=TIMEOUT) as client:
            request: Any = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "Hello?"}]}
            with client.messages.stream(**request) as stream:
                assert stream.get_final_text() == "Hello there."
            assert [block.type for block in client.messages.create(**request).content] == ["text"]
    finally:
        server.should_exit = True
        thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_a_configuration_of_another_type_is_named(home: Path) -> None:
    message = "expected a path, a mapping or a Config of load_config, got "
    for wrong, name in ((5, "int"), (b"gateway.toml", "bytes"), ([], "list"), (object(), "object")):
        other: Any = wrong
        for function in (dragoman.load_config, dragoman.asgi):
            with pytest.raises(dragoman.LocalMisuse, match=message + name):
                function(other)


def test_a_missing_file_is_named(home: Path) -> None:
    with pytest.raises(dragoman.ConfigError, match=r"none\.toml: there is no such file"):
        dragoman.asgi("none.toml")


def test_without_a_file_the_simulator_is_the_only_upstream(home: Path) -> None:
    config = dragoman.load_config()
    assert config.file is None and all("simulator" in name for name in config.upstreams)
    assert dragoman.load_config({}).upstreams.keys() == config.upstreams.keys()


def test_a_mapping_has_the_same_meaning_as_the_file(simulator: Simulator, home: Path) -> None:
    ours, files = dragoman.load_config(tables(simulator)), dragoman.load_config(toml_file(simulator, home))
    assert (ours.server, ours.log, [*ours.upstreams]) == (files.server, files.log, [*files.upstreams])
    assert ours.upstreams["main"].base_url == files.upstreams["main"].base_url
    assert (ours.file, files.file) == (None, home / "gateway.toml")


def test_all_problems_of_a_mapping_are_named(home: Path) -> None:
    wrong = {"server": {"prot": 1, "host": 5}, "upstreams": {"main": {"dialect": "openai", "key": "sk-literal"}}}
    with pytest.raises(dragoman.ConfigError) as caught:
        dragoman.load_config(wrong)
    shown = {problem.at: str(problem) for problem in caught.value.problems}
    assert {"server.prot", "server.host", "upstreams.main.key"} <= shown.keys()
    assert shown["server.prot"] == "config: server.prot: there is no such key (did you mean port?)"
    assert "sk-literal" not in str(caught.value)


def test_a_mapping_is_copied_and_may_hold_paths_and_tuples(simulator: Simulator, home: Path) -> None:
    given = tables(simulator)
    given["upstreams"]["main"]["ca_file"] = Path("ca.pem")
    given["upstreams"]["main"]["models"] = ("gpt-*", "o1")
    given["routes"] = ({"match": ("claude-*",), "upstream": "main"},)
    with pytest.raises(dragoman.ConfigError, match=r"upstreams\.main\.ca_file: there is no file"):
        dragoman.load_config(given)
    (home / "ca.pem").write_text("")  # A relative path in a mapping starts at the current folder.
    upstream = dragoman.load_config(given).upstreams["main"]
    assert upstream.ca_file == home / "ca.pem"
    assert given["upstreams"]["main"]["models"] == ("gpt-*", "o1")


def test_the_environment_overrides_a_mapping(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_SERVER__PORT", "1234")
    assert dragoman.load_config({"server": {"port": 99}}).server.port == 1234


def test_a_mapping_that_is_no_configuration_is_refused(home: Path) -> None:
    endless: dict[str, Any] = {}
    endless["server"] = endless
    names: Any = {"server": {5: 1}}
    with pytest.raises(dragoman.ConfigError, match="nested too deeply"):
        dragoman.load_config(endless)
    with pytest.raises(dragoman.ConfigError, match="server: the name of a setting must be a string, got 5"):
        dragoman.load_config(names)


async def test_a_reload_just_before_the_end_leaves_nothing_open(home: Path) -> None:
    """The simulators of the earlier configuration are closed, too: a socket that is left open is a warning."""
    application = dragoman.asgi({})
    await application.start()
    assert application.upstreams is not None
    before = [backend.base_url for backend in application.upstreams.backends]
    await application.reload(dragoman.load_config({}))
    await application.stop()
    for url in before:
        with pytest.raises(OSError):
            await _connect(url)


async def _connect(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.close()
