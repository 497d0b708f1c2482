"""The table of clients: what must hold for every row, those that will be added included."""

from __future__ import annotations

import json
import re

import pytest

from dragoman.cli.recipes import CLIENTS, OTHER, SDKS, Prepared, Recipe, prepare, recipe_for
from dragoman.cli.run import answers, child_environment, run_child
from dragoman.gateway.config import assemble
from dragoman.gateway.listing import Listed

URL, KEY, MODEL = "http://127.0.0.1:1", "dgm_the-key", "m-1"
EVERY = pytest.mark.parametrize("recipe", [*CLIENTS, *SDKS, OTHER], ids=lambda recipe: recipe.name)


def made(recipe: Recipe, **more: object) -> Prepared:
    return prepare(recipe, url=URL, key=KEY, model=MODEL, **more)  # type: ignore[arg-type]


@EVERY
def test_a_recipe_is_filled_in_whole_gives_the_key_by_variable_only_and_takes_away_nothing_it_gives(
    recipe: Recipe,
) -> None:
    for asked in ("", "another"):
        for answered in (True, False):
            done = made(recipe, asked=asked, answers=lambda name, yes=answered: yes)
            text = " ".join([*done.env.values(), *done.args])
            assert not re.search(r"\{(url|key|model|models)\}", text)
            assert KEY in done.env.values()
            assert not any(KEY in word for word in done.args)
            assert URL in text
            assert not set(done.unset) & set(done.env)


@EVERY
def test_addresses_end_where_the_family_of_sdks_wants_them_to(recipe: Recipe) -> None:
    for name, value in made(recipe).env.items():
        if name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_HOST", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"):
            assert value == URL
        if name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
            assert value == f"{URL}/v1"


@pytest.mark.parametrize("recipe", CLIENTS, ids=lambda recipe: recipe.name)
def test_a_wanted_model_reaches_the_client(recipe: Recipe) -> None:
    done = made(recipe, asked="wanted-model")
    assert "wanted-model" in " ".join([*done.env.values(), *done.args])


def test_a_clients_own_names_stay_while_somebody_answers_them() -> None:
    claude = recipe_for("claude", {})
    assert "ANTHROPIC_MODEL" not in made(claude).env
    some = made(claude, answers=lambda name: "haiku" not in name)
    assert some.env["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == MODEL
    assert "ANTHROPIC_DEFAULT_OPUS_MODEL" not in some.env


def test_a_client_is_known_by_the_name_of_its_file() -> None:
    assert recipe_for("/opt/tools/codex", {}).name == "codex"
    assert recipe_for("my-codex", {}) == OTHER


def test_opencode_is_told_the_models_and_their_limits_where_both_are_known() -> None:
    listed = [Listed("a", "u", "openai", "a", 10, 5), Listed("b", "u", "openai", "b", 10)]
    text = made(recipe_for("opencode", {}), listed=listed).env["OPENCODE_CONFIG_CONTENT"]
    models = json.loads(text)["provider"]["dragoman"]["models"]
    assert models == {
        MODEL: {"name": MODEL},
        "a": {"name": "a", "limit": {"context": 10, "output": 5}},
        "b": {"name": "b"},
    }


def test_a_name_that_a_service_with_a_closed_list_does_not_have_is_not_answered() -> None:
    text = '[upstreams.kiro]\npreset = "kiro"\n'
    config = assemble(text, None, {"HOME": "/nowhere"}, {}).config
    assert answers(config, "claude-sonnet-4-5")
    assert not answers(config, "claude-opus-5-5")
    assert not answers(config, "gpt-4o")


@pytest.mark.parametrize(
    ("given", "spared"),
    [
        ({}, None),
        ({"http_proxy": "http://p"}, "127.0.0.1,localhost,::1"),
        ({"ALL_PROXY": "http://p", "no_proxy": "a, b"}, "a,b,127.0.0.1,localhost,::1"),
        ({"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, "*"),
    ],
)
def test_loopback_is_spared_from_proxies(given: dict[str, str], spared: str | None) -> None:
    child = child_environment(given, Prepared({}, (), ()), set())
    assert child.get("NO_PROXY") == child.get("no_proxy") == spared


def test_a_child_that_cannot_be_started_leaves_the_signals_as_they_were() -> None:
    import signal

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(FileNotFoundError):
        run_child(["/no/such/program"], {})
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
