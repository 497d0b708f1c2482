"""`dragoman config check | show | path`."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import pytest

from dragoman.cli import config as command

KIMI = '[upstreams.kimi]\npreset = "moonshot"\nkey = "env:NO_SUCH_KEY"\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("DRAGOMAN_CONFIG", raising=False)
    path = tmp_path / "dragoman" / "config.toml"
    path.parent.mkdir()
    return path


def run(*arguments: str) -> int:
    parser = ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_path_names_the_file_that_is_read(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("path") == 0
    assert capsys.readouterr().out == f"{file}\n"
    assert run("path", "--config", str(tmp_path / "x"), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(tmp_path / "x"), "exists": False}


def test_check_says_what_is_wrong_and_exits_with_3(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(KIMI + "basee_url = 'x'\nx = 1\n")
    assert run("check") == 3
    out, error = capsys.readouterr()
    assert out == ""
    assert f"{file}:4: upstreams.kimi.basee_url: there is no such key (did you mean base_url?)" in error
    assert f"{file}:5: " in error
    assert run("check", "--json") == 3
    told = json.loads(capsys.readouterr().out)
    assert not told["ok"]
    assert [problem["line"] for problem in told["problems"]] == [4, 5]


def test_check_of_a_good_file_warns_of_what_is_not_set(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(KIMI)
    assert run("check") == 0
    assert "upstreams.kimi.key: the variable NO_SUCH_KEY is not set" in capsys.readouterr().err
    assert run("check", "--json") == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_check_without_a_file_is_good(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check") == 0
    assert "built-in" in capsys.readouterr().err


def test_show_names_the_layer_of_each_value(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(KIMI)
    monkeypatch.setenv("DRAGOMAN_SERVER__PORT", "9000")
    assert run("show", "--origin") == 0
    parts = [line.partition("#") for line in capsys.readouterr().out.splitlines()]
    rows = {setting.strip(): origin.strip() for setting, _, origin in parts}
    assert rows["server.port = 9000"] == "environment DRAGOMAN_SERVER__PORT"
    assert rows['server.host = "127.0.0.1"'] == "default"
    assert rows['upstreams.kimi.dialect = "openai"'] == "preset moonshot"
    assert rows['upstreams.kimi.key = "env:NO_SUCH_KEY"'] == f"{file}:3"


def test_show_without_origins_is_toml(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tomllib

    file.write_text(KIMI)
    assert run("show") == 0
    assert tomllib.loads(capsys.readouterr().out)["upstreams"]["kimi"]["preset"] == "moonshot"
    assert run("show", "--json") == 0
    assert {"key": "server.port", "value": 8787, "origin": "default"} in json.loads(capsys.readouterr().out)


def test_show_masks_every_secret(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "sk-canary-0123456789"
    file.write_text(f"""
allow_literal_secrets = true
[server]
key = "{canary}"
[upstreams.a]
preset = "openai"
key = ["{canary}", "cmd:echo {canary}", "env:A"]
proxy = "http://user:{canary}@box:1/"
headers = {{ Authorization = "Bearer {canary}", x-team = "seen" }}
[upstreams.b]
preset = "openai"
""")
    monkeypatch.setenv("DRAGOMAN_UPSTREAMS__B__KEY", canary)
    for options in ((), ("--origin",), ("--json",)):
        assert run("show", *options) == 0
        out, error = capsys.readouterr()
        assert canary not in out + error
        assert "env:A" in out and "seen" in out and "box:1" in out


def test_show_of_a_broken_file_exits_with_1(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("[server")
    assert run("show") == 1
    assert capsys.readouterr().err.startswith("dragoman: ")
