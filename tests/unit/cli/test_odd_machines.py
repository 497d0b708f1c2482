"""Odd values in the environment, in files and in arguments: what `run` and `init` make of them."""

from __future__ import annotations

import subprocess
from argparse import Namespace
from pathlib import Path

import pytest

from dragoman.cli import init, run
from dragoman.cli.found import search
from dragoman.cli.recipes import shell_key
from dragoman.gateway.config import assemble


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "DRAGOMAN_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_variable_of_white_space_is_no_key(tmp_path: Path) -> None:
    found = search({"HOME": str(tmp_path), "OPENAI_API_KEY": " \n", "ANTHROPIC_API_KEY": "sk-1"})
    assert [find.preset for find in found] == ["anthropic"]


def test_init_leaves_a_link_to_nowhere_alone(bare: Path) -> None:
    link = bare / "config.toml"
    link.symlink_to(bare / "not-there-yet")
    asked = Namespace(config=link, yes=True, only_print=False, force=False)
    assert init.run(asked) == 1
    assert link.is_symlink()


def test_a_file_that_may_not_be_run_is_told_apart_from_one_that_is_not_there(bare: Path) -> None:
    file = bare / "client"
    file.touch(mode=0o600)
    for client, status in ((file, 126), (bare / "nobody", 127)):
        assert run.run(Namespace(client=str(client), print_env=False)) == status


@pytest.mark.parametrize("name", ["key", "my key", "it's; exit 3", "$(exit 4)"])
def test_a_shell_finds_the_key_in_a_file_at_home_whatever_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("the-key")
    config = assemble(f'[server]\nkey = "file:~/{name}"\n', tmp_path / "c.toml", {"HOME": str(tmp_path)}, {}).config
    words = shell_key(config, {"HOME": str(tmp_path)})
    done = subprocess.run(
        ["sh", "-c", f"printf %s {words}"], env={"HOME": str(tmp_path)}, capture_output=True, check=True
    )
    assert done.stdout == b"the-key"


def test_what_is_printed_for_a_shell_is_one_comment_whatever_the_model_is_called() -> None:
    lines = run.then("codex", ("-c", 'model="x\nexit 5"'))
    assert all(line.startswith("#") for line in lines.splitlines())
