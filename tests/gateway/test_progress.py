"""What takes its time says so: slow upstreams, requests that still run."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.gateway.harness import gated_server, wait_until
from tests.gateway.test_commands import UserHome, home

__all__ = ["home"]

_CONFIG = '[upstreams.slow]\ndialect = "openai"\nbase_url = "{url}"\nkey = "env:K"\n'
_NONE = (
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\nconnection: close\r\n\r\n{"data":[]}'
)


@pytest.mark.parametrize("has_gateway", [False, True])
def test_models_says_that_an_upstream_is_slow(has_gateway: bool, home: UserHome) -> None:
    with gated_server(_NONE) as (url, gate):
        config = home.path / ".config/dragoman/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(_CONFIG.format(url=url))
        if has_gateway:
            with home.serving(K="k"):
                _wait_for_notice(home, gate.set, "waiting for the gateway")
        else:
            _wait_for_notice(home, gate.set, "fetching the models of slow")


def _wait_for_notice(home: UserHome, release: object, words: str) -> None:
    command = [sys.executable, "-m", "dragoman", "models"]
    with subprocess.Popen(command, env=home.environ({"K": "k"}), stderr=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stderr is not None and callable(release)
        first = run.stderr.readline().decode()
        release()
        run.communicate()
    assert (first, run.returncode) == (f"dragoman: {words} …\n", 0)


def test_what_is_quick_says_nothing(home: UserHome) -> None:
    home.write("c.toml", _CONFIG.format(url="http://127.0.0.1:9"))
    assert home.run("config", "check", "--config", str(home.path / "c.toml"), K="k").stderr.count("…") == 0


def test_explain_says_that_a_request_is_still_running(home: UserHome) -> None:
    with gated_server(b"") as (url, gate):
        config = home.write("c.toml", f'{_CONFIG.format(url=url)}default_model = "m"\n')
        with home.serving("--config", str(config), K="k") as served, ThreadPoolExecutor(1) as pool:
            asked = pool.submit(served.say, "Hello", "m")
            wait_until(lambda: json.loads(home.run("top", "--json").stdout)["running"])
            [running] = json.loads(home.run("top", "--json").stdout)["running"]
            done = home.run("explain", running["id"][-8:])
            gate.set()
            asked.result(60)
    assert done.returncode == 1
    assert f"the request {running['id']} is waiting at slow; it is explained when it has ended" in done.stderr
