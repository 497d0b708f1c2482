"""`dragoman reload` and SIGHUP apply everything that can be applied, and say what cannot."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.config import Config, build_config
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.reload import FIXED, Reloader, ReloadResult, changed_settings
from tests.gateway.harness import wait_until
from tests.gateway.test_commands import SIMULATED, ServeProcess, UserHome, home

__all__ = ["home"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and Unix sockets")


def logged(served: ServeProcess, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in served.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def reload(home: UserHome, served: ServeProcess, how: str) -> None:
    """Reload by the command or by SIGHUP, and wait until it is done."""
    before = len(re.findall(r'"event":"(reloaded|reload_refused|restart_needed)"', served.log))
    if how == "command":
        home.run("reload")
    else:
        served.process.send_signal(signal.SIGHUP)
    wait_until(lambda: len(re.findall(r'"event":"(reloaded|reload_refused|restart_needed)"', served.log)) > before)


@pytest.mark.parametrize("how", ["command", "SIGHUP"])
def test_the_log_is_reloaded(home: UserHome, how: str) -> None:
    """Regression: SIGHUP ignored [log]."""
    config = home.write("config.toml", f'{SIMULATED}[log]\nformat = "json"\n')
    with home.serving("--quiet", "--config", str(config)) as served:
        served.say("one")
        wait_until(lambda: len(logged(served, "request")) == 1)
        config.write_text(f'{SIMULATED}[log]\nformat = "json"\nlevel = "error"\n')
        home.run("reload")
        served.say("two")
        config.write_text(f'{SIMULATED}[log]\nformat = "json"\nlevel = "debug"\n')
        reload(home, served, how)
        served.say("three")
        wait_until(lambda: logged(served, "note"))
        assert len(logged(served, "request")) == 2
        config.write_text(f'{SIMULATED}[log]\nformat = "text"\n')
        if how == "command":
            assert home.run("reload").returncode == 0
        else:
            served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reloaded  log.level, log.format" in served.log)
        served.say("four")
        wait_until(
            lambda: re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d\d:\d\d 200 POST", served.log, re.MULTILINE)
        )


@pytest.mark.parametrize("how", ["command", "SIGHUP"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_changed_port_says_restart_needed_and_not_reloaded(home: UserHome, how: str, workers: str) -> None:
    """Regression: a changed port was logged as "reloaded"."""
    config = home.write("config.toml", SIMULATED)
    with home.serving("--quiet", "--config", str(config), "--workers", workers) as served:
        config.write_text(f'{SIMULATED}[server]\nadmin_port = 1\nhosts = ["x.test"]\n')
        if how == "command":
            done = home.run("reload")
            assert (done.returncode, done.stdout.splitlines()) == (
                1,
                ["server.hosts: reloaded", "server.admin_port: restart needed"],
            )
        else:
            reload(home, served, how)
        wait_until(lambda: logged(served, "restart_needed"))
        [line] = logged(served, "restart_needed")
        assert (line["level"], line["settings"]) == ("warning", ["server.admin_port"])
        assert line["message"] == "server.admin_port: restart needed"
        assert [each["changed"] for each in logged(served, "reloaded")] == [["server.hosts"]]
        # It is still needed after the next reload, until the setting is what the process has.
        config.write_text(f"{SIMULATED}[server]\nadmin_port = 1\nping = 9\n")
        assert home.run("reload").stdout.splitlines()[-1] == "server.admin_port: restart needed"
        assert "server.admin_port: restart needed" in home.run("status").stdout
        config.write_text(f"{SIMULATED}[server]\nping = 9\n")
        assert home.run("reload").returncode == 0
        assert json.loads(home.run("status", "--json").stdout)["restart_needed"] == []


def test_only_a_changed_port_is_no_reload(home: UserHome) -> None:
    config = home.write("config.toml", SIMULATED)
    with home.serving("--quiet", "--config", str(config)) as served:
        config.write_text(f"{SIMULATED}[server]\nadmin_port = 1\n")
        done = home.run("reload", "--json")
        assert (done.returncode, json.loads(done.stdout)) == (
            1,
            {"changed": [], "restart": ["server.admin_port"], "refused": "", "warnings": []},
        )
        assert logged(served, "restart_needed") and not logged(served, "reloaded")
        assert served.say("still there?")[0] == 200


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_refused_configuration_changes_nothing_and_says_why(home: UserHome, workers: str) -> None:
    config = home.write("config.toml", SIMULATED)
    with home.serving("--quiet", "--config", str(config), "--workers", workers) as served:
        config.write_text(f"{SIMULATED}\n[server]\nprot = 1\n")
        done = home.run("reload")
        assert (done.returncode, done.stdout) == (3, "")
        assert "prot" in done.stderr and "did you mean port?" in done.stderr and "Traceback" not in done.stderr
        assert "the last reload was refused" in home.run("status").stdout
        assert served.say("still there?")[0] == 200
        assert json.loads(home.run("reload", "--json").stdout)["refused"]
        config.write_text(SIMULATED)
        assert home.run("reload").stdout == "reloaded; no setting changed\n"
        assert "the last reload was refused" not in home.run("status").stdout


@pytest.mark.parametrize("workers", ["1", "2"])
def test_upstreams_routes_and_limits_are_reloaded_in_every_worker(home: UserHome, workers: str) -> None:
    config = home.write("config.toml", SIMULATED)
    with home.serving("--quiet", "--config", str(config), "--workers", workers) as served:
        more = (
            '[upstreams.two]\npreset = "simulator"\ndialect = "openai"\n[[routes]]\nmatch = "x-*"\nupstream = "two"\n'
        )
        config.write_text(f"explain = false\n{SIMULATED}{more}[server]\nmax_body = 2000\n")
        done = home.run("reload")
        assert done.returncode == 0, done.stderr
        assert {"explain: reloaded", "server.max_body: reloaded", "upstreams.two (added): reloaded"} <= set(
            done.stdout.splitlines()
        )
        for _ in range(12):  # of all workers
            status, headers, _ = served.say("hello", "x-model")
            assert (status, headers["dragoman-upstream"]) == (200, "two")
            assert served.say("y" * 3000)[0] == 413
        assert home.run("status", "--json").stdout.count('"name": "two"') == int(workers)


def test_no_secret_is_shown_and_a_rotated_one_is_named(home: UserHome) -> None:
    secret = home.write("key", "the-first-secret-0123456789")
    secret.chmod(0o600)
    upstream = '[upstreams.one]\ndialect = "openai"\nbase_url = "http://127.0.0.1:9"\nkey = "file:{}"\n'
    config = home.write("config.toml", upstream.format(secret))
    with home.serving("--quiet", "--config", str(config)) as served:
        secret.write_text("the-second-secret-0123456789")
        done = home.run("reload")
        assert done.stdout == "upstreams.one.key (its secret): reloaded\n"
        other = home.write("other", "the-third-secret-0123456789")
        other.chmod(0o600)
        config.write_text(upstream.format(other))
        assert home.run("reload").stdout == "upstreams.one.key: reloaded\n"
    assert not re.search(r"the-(first|second|third)-secret", served.log + done.stdout)


def test_a_reload_needs_the_private_socket(home: UserHome) -> None:
    with home.serving("--quiet") as served:
        assert served.ask("/reload", {"x": 1})[0] == 404


@pytest.mark.parametrize("setting", ["host", "port", "workers", "admin_socket", "admin_port"])
def test_every_setting_that_needs_a_restart_keeps_its_value_and_says_so(setting: str) -> None:
    values = {"host": "localhost", "port": 9, "workers": 3, "admin_socket": "/nowhere/x", "admin_port": 9}
    before = build_config("", None, {"HOME": "/nowhere"}, {})
    after = build_config("", None, {"HOME": "/nowhere"}, {f"server.{setting}": values[setting], "server.ping": 3})
    log, applied = io.StringIO(), list[Config]()

    async def apply(config: Config) -> None:
        applied.append(config)

    async def work() -> list[ReloadResult]:
        reloader = Reloader(before, lambda: after, apply, AccessLog(Redactor(), stream=log, form="text"))
        return [await reloader.run(), await reloader.run()]

    first, second = asyncio.run(work())
    assert first == ReloadResult(("server.ping",), (f"server.{setting}",))
    assert second == ReloadResult((), (f"server.{setting}",))
    assert {each.server.ping for each in applied} == {3.0}
    assert {structs.asdict(each.server)[setting] for each in applied} == {structs.asdict(before.config.server)[setting]}
    lines = [line[27:] for line in log.getvalue().splitlines()]
    needed = f"WARNING restart_needed  server.{setting}: restart needed"
    assert lines == ["reloaded  server.ping", needed, needed]


# --- what changed


def settings(before: str, after: str) -> list[str]:
    loaded = [build_config(text, None, {"HOME": "/nowhere"}, {}) for text in (before, after)]
    return list(dict.fromkeys(changed_settings(loaded[0].leaves, loaded[1].leaves)))


def test_changed_settings_are_named_as_in_the_file() -> None:
    one = '[upstreams.one]\npreset = "simulator"\ndialect = "kiro"\n'
    two = one.replace("one", "two")
    assert settings(one, one) == []
    assert settings(one, f"{one}[upstreams.one.limits]\nconcurrency = 3\n") == ["upstreams.one.limits.concurrency"]
    assert settings(one, one + two) == ["upstreams.two (added)"]
    assert settings(one + two, one) == ["upstreams.two (removed)"]
    assert settings(one, f'{one}[default]\nupstream = "one"\n') == ["default.upstream"]
    assert settings(one, f"{one}[server]\nport = 1\nping = 2\n[log]\nlevel = 'error'\n") == [
        "server.port",
        "server.ping",
        "log.level",
    ]


def test_settings_that_need_a_restart_exist() -> None:
    loaded = build_config("", None, {"HOME": "/nowhere"}, {})
    assert {*FIXED} <= {*loaded.config.server.__struct_fields__}


def test_serve_says_how_to_reload(home: UserHome) -> None:
    with home.serving() as served:
        _, printed = served.end()
    assert "dragoman reload" in printed and Path(home.key_file).exists()
