"""The table of clients: what must hold for every row, those that will be added included."""

from __future__ import annotations

import json
import re
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest

from dragoman.cli import init, main, run
from dragoman.cli.client_setup import (
    ANY_COMMAND,
    CLIENTS,
    SDKS,
    ChildSetup,
    ClientSetup,
    fill_setup,
    find_setup,
    shell_key,
)
from dragoman.cli.detection import detect_upstreams
from dragoman.cli.model_choice import KnownModels, ModelChoice
from dragoman.cli.run import child_environment, run_child
from dragoman.gateway.codex_models import render_codex_models
from dragoman.gateway.config import build_config
from dragoman.gateway.model_entries import ModelEntry

URL, KEY, MODEL = "http://127.0.0.1:1", "dgm_the-key", "m-1"
EVERY = pytest.mark.parametrize("recipe", [*CLIENTS, *SDKS, ANY_COMMAND], ids=lambda recipe: recipe.name)


def setup_of(recipe: ClientSetup, **more: object) -> ChildSetup:
    return fill_setup(recipe, url=URL, key=KEY, choice=ModelChoice(MODEL), **more)  # type: ignore[arg-type]


@EVERY
def test_a_recipe_is_filled_in_whole_gives_the_key_by_variable_only_and_takes_away_nothing_it_gives(
    recipe: ClientSetup,
) -> None:
    for requested in ("", "another"):
        for answered in (True, False):
            done = setup_of(recipe, requested=requested, is_served=lambda name, yes=answered: yes)
            text = " ".join([*done.env.values(), *done.args])
            assert not re.search(r"\{(url|key|model|small_model|models|window)\}", text)
            assert KEY in done.env.values()
            assert not any(KEY in word for word in done.args)
            assert URL in text
            assert not set(done.unset) & set(done.env)


@EVERY
def test_addresses_end_where_the_family_of_sdks_wants_them_to(recipe: ClientSetup) -> None:
    for name, value in setup_of(recipe).env.items():
        if name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_HOST", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"):
            assert value == URL
        if name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
            assert value == f"{URL}/v1"


@pytest.mark.parametrize("recipe", CLIENTS, ids=lambda recipe: recipe.name)
def test_a_wanted_model_reaches_the_client(recipe: ClientSetup) -> None:
    done = setup_of(recipe, requested="wanted-model")
    assert "wanted-model" in " ".join([*done.env.values(), *done.args])


def test_a_clients_own_names_stay_while_an_upstream_answers_them() -> None:
    claude = find_setup("claude", {})
    assert "ANTHROPIC_MODEL" not in setup_of(claude).env
    some = setup_of(claude, is_served=lambda name: "haiku" not in name)
    assert some.env["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == MODEL
    assert "ANTHROPIC_DEFAULT_OPUS_MODEL" not in some.env


def test_codex_gets_entries_for_models_that_it_does_not_know() -> None:
    listed = [ModelEntry(name, "u", "openai", name, window) for name, window in (("a", 10_000), ("gpt-5.5", None))]
    entries = render_codex_models(listed, "chosen")
    shown = [(each["slug"], each["context_window"], each["priority"]) for each in entries if isinstance(each, dict)]
    assert shown == [("chosen", 200_000, 0), ("a", 10_000, 1)]
    assert all(isinstance(each, dict) and each["base_instructions"] for each in entries)


def test_a_client_is_known_by_the_name_of_its_file() -> None:
    assert find_setup("/opt/tools/codex", {}).name == "codex"
    assert find_setup("my-codex", {}) == ANY_COMMAND


def test_opencode_gets_the_models_and_their_limits_where_both_are_known() -> None:
    listed = [ModelEntry("a", "u", "openai", "a", 10, 5), ModelEntry("b", "u", "openai", "b", 10)]
    text = setup_of(find_setup("opencode", {}), listed=listed).env["OPENCODE_CONFIG_CONTENT"]
    models = json.loads(text)["provider"]["dragoman"]["models"]
    assert models == {
        MODEL: {"name": MODEL},
        "a": {"name": "a", "limit": {"context": 10, "output": 5}},
        "b": {"name": "b"},
    }


def test_a_name_that_a_service_with_a_closed_list_does_not_have_is_not_answered() -> None:
    text = '[upstreams.kiro]\npreset = "kiro"\n'
    known = KnownModels(build_config(text, None, {"HOME": "/nowhere"}, {}).config)
    assert known.is_served("claude-sonnet-4-5")
    assert not known.is_served("claude-opus-5-5")
    assert not known.is_served("gpt-4o")


@pytest.mark.parametrize(
    ("environment", "spared"),
    [
        ({}, None),
        ({"http_proxy": "http://p"}, "127.0.0.1,localhost,::1"),
        ({"ALL_PROXY": "http://p", "no_proxy": "a, b"}, "a,b,127.0.0.1,localhost,::1"),
        ({"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, "*"),
    ],
)
def test_loopback_is_spared_from_proxies(environment: dict[str, str], spared: str | None) -> None:
    child = child_environment(environment, ChildSetup({}, (), ()), set())
    assert child.get("NO_PROXY") == child.get("no_proxy") == spared


def test_a_child_that_cannot_be_started_leaves_the_signals_as_they_were() -> None:
    import signal

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(FileNotFoundError):
        run_child(["/no/such/program"], {})
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


# --- Odd values in the environment, in files and in arguments: what `run` and `init` make of them


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "DRAGOMAN_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_variable_of_white_space_is_no_key(tmp_path: Path) -> None:
    found = detect_upstreams({"HOME": str(tmp_path), "OPENAI_API_KEY": " \n", "ANTHROPIC_API_KEY": "sk-1"})
    assert [find.preset for find in found] == ["anthropic"]


def test_init_leaves_a_link_to_nowhere_alone(bare: Path) -> None:
    link = bare / "config.toml"
    link.symlink_to(bare / "not-there-yet")
    arguments = Namespace(config=link, yes=True, only_print=False, force=False)
    assert init.run(arguments) == 1
    assert link.is_symlink()


def test_a_file_that_may_not_be_run_is_distinguished_from_one_that_is_missing(bare: Path) -> None:
    file = bare / "client"
    file.touch(mode=0o600)
    for client, status in ((file, 126), (bare / "unknown", 127)):
        assert main(["run", str(client)]) == status


@pytest.mark.parametrize("name", ["key", "my key", "it's; exit 3", "$(exit 4)"])
def test_a_shell_finds_the_key_in_a_file_of_the_home_directory_whatever_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("the-key")
    config = build_config(f'[server]\nkey = "file:~/{name}"\n', tmp_path / "c.toml", {"HOME": str(tmp_path)}, {}).config
    words = shell_key(config, {"HOME": str(tmp_path)})
    done = subprocess.run(
        ["sh", "-c", f"printf %s {words}"], env={"HOME": str(tmp_path)}, capture_output=True, check=True
    )
    assert done.stdout == b"the-key"


def test_what_is_printed_for_a_shell_is_one_comment_whatever_the_model_is_called() -> None:
    lines = run.start_comment("codex", ("-c", 'model="x\nexit 5"'))
    assert all(line.startswith("#") for line in lines.splitlines())
