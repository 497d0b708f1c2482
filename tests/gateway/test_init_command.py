"""`dragoman init` and `dragoman models`: a first configuration, and the figures shown for models."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from dragoman.cli.detection import DEFAULT_MODELS, key_variable
from dragoman.gateway.presets import PRESETS
from dragoman.simulator import running_simulator
from tests.gateway.test_commands import ServeProcess, UserHome, home

__all__ = ["home"]

KEYS = [name for name in map(key_variable, PRESETS) if name]


def config_file(home: UserHome) -> Path:
    return home.path / ".config/dragoman/config.toml"


def init(home: UserHome, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return home.run("init", *words, **environ)


# --- init


def test_init_then_serve_answers_a_request(home: UserHome) -> None:
    """Run init, config check and serve, then send a request; the key is in the environment, the upstream is a simulator."""
    with running_simulator("openai") as service:
        done = init(home, "--yes", MOONSHOT_API_KEY="sk-secret")
        assert (done.returncode, done.stdout) == (0, "dragoman run claude\n"), done.stderr
        assert home.run("config", "check", MOONSHOT_API_KEY="sk-secret").returncode == 0
        more = {"MOONSHOT_API_KEY": "sk-secret", "DRAGOMAN_UPSTREAMS__MOONSHOT__BASE_URL": service.url}
        with home.serving(**more) as served:
            status, _, response = served.say("Hello there.", "claude-haiku-4-5")
        assert (status, response["content"][0]["text"]) == (200, "You said: Hello there.")
        assert json.loads(service.requests[-1].body)["model"] == DEFAULT_MODELS["moonshot"]


@pytest.mark.parametrize("variable", [*KEYS, "AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE"])
def test_the_written_file_is_valid_private_and_contains_no_secret(home: UserHome, variable: str) -> None:
    environ = {variable: "the-secret-itself"}
    done = init(home, "--yes", **environ)
    assert done.returncode == 0, done.stderr
    assert f"{variable} is set" in done.stderr
    file = config_file(home)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "the-secret-itself" not in file.read_text() + done.stdout + done.stderr
    checked = json.loads(home.run("config", "check", "--json", **environ).stdout)
    assert checked == {"ok": True, "problems": [], "warnings": []}


def test_all_detected_services_make_one_valid_file(home: UserHome) -> None:
    folder = home.path / ".aws/sso/cache"
    folder.mkdir(parents=True)
    token = {
        "accessToken": "a-secret-token",
        "refreshToken": "r",
        "expiresAt": "2999-01-01T00:00:00Z",
        "authMethod": "social",
    }
    (folder / "kiro-auth-token.json").write_text(json.dumps(token))
    (home.path / ".aws/credentials").write_text("[default]\naws_access_key_id = AKIA\n")
    environ = dict.fromkeys(KEYS, "sk-secret")
    assert init(home, "--yes", **environ).returncode == 0
    text = config_file(home).read_text()
    assert not any(word in text for word in ("a-secret-token", "sk-secret", "AKIA"))
    listed = json.loads(home.run("models", "--offline", "--json", **environ).stdout)
    assert {row["upstream"] for row in listed["patterns"]} >= {"kiro", "bedrock", "moonshot", "openrouter", "openai"}
    assert listed["default"] == {"upstream": "kiro", "model": DEFAULT_MODELS["kiro"]}


def test_an_existing_file_is_kept_without_force(home: UserHome) -> None:
    file = config_file(home)
    file.parent.mkdir(parents=True)
    file.write_text("# mine\n")
    done = init(home, "--yes", OPENAI_API_KEY="k")
    assert done.returncode == 1
    assert "--force" in done.stderr
    assert file.read_text() == "# mine\n"
    assert init(home, "--yes", "--force", OPENAI_API_KEY="k").returncode == 0
    assert "[upstreams.openai]" in file.read_text()
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


def test_print_writes_no_file(home: UserHome) -> None:
    done = init(home, "--print", OPENAI_API_KEY="k")
    assert "[upstreams.openai]" in done.stdout
    assert list(home.path.iterdir()) == []


def test_without_detected_services_every_preset_is_an_example_with_instructions(home: UserHome) -> None:
    done = init(home, "--yes")
    assert (done.returncode, done.stdout) == (0, "dragoman run --upstream simulator claude\n")
    assert "MOONSHOT_API_KEY" in done.stderr
    text = config_file(home).read_text()
    assert home.run("config", "check").returncode == 0
    for name in PRESETS:  # each is valid once its comment marks are removed
        at = text.index(f"# [upstreams.{name}]")
        example = text[at:].split("\n#\n")[0].replace("# ", "")
        file = home.write(f"{name}.toml", example)
        checked = home.run("config", "check", "--config", str(file), AWS_REGION="eu-west-1")
        assert checked.returncode in (0, 5) and "is valid" in checked.stderr, (example, checked.stderr)  # 5: no key


def test_a_config_without_upstreams_gets_the_detected_ones(home: UserHome) -> None:
    file = config_file(home)
    file.parent.mkdir(parents=True)
    file.write_text("[server]\nport = 9999\n")
    listed = json.loads(home.run("models", "--offline", "--json", MOONSHOT_API_KEY="k").stdout)
    assert listed["default"]["upstream"] == "moonshot"


# --- models

FIGURES = """
[upstreams.kiro]
preset = "kiro"
key = "env:NONE"

[upstreams.sim]
preset = "simulator"
dialect = "openai"
models = ["m-1", "m-2", "m-3"]

[models."m-*"]
window = 1000
longest_answer = 500

[models.m-2]
window = 5

[[routes]]
match = "claude-sonnet-4-5"
upstream = "kiro"
model = "claude-sonnet-4.5"
"""


@pytest.fixture
def figures(home: UserHome) -> Iterator[ServeProcess]:
    file = home.write("c.toml", FIGURES)
    with home.serving("--config", str(file)) as served:
        yield served


def known(rows: list[dict[str, Any]], *names: str) -> dict[str, tuple[Any, ...]]:
    return {row["id"]: tuple(row.get(name) for name in names) for row in rows}


def test_models_shows_known_context_windows_and_invents_none(home: UserHome) -> None:
    file = home.write("c.toml", FIGURES)
    listed = json.loads(home.run("models", "--json", "--config", str(file)).stdout)
    rows = known(listed["models"], "window", "longest_answer")
    assert rows["m-1"] == (1000, 500)
    assert rows["m-2"] == (5, None)
    assert rows["claude-sonnet-4-5"] == (200_000, None)
    assert rows["claude-opus-4.6"] == (1_000_000, None)
    assert rows["auto"] == (None, None)
    page = home.run("models", "--config", str(file)).stdout
    assert "claude-opus-4.6" in page
    assert "1M" in page
    only = json.loads(home.run("models", "--json", "--upstream", "sim", "--config", str(file)).stdout)
    assert {row["upstream"] for row in only["models"]} == {"sim"}
    assert home.run("models", "--upstream", "unknown", "--config", str(file)).returncode == 2


def test_the_sdks_read_the_same_figures_from_the_gateway(home: UserHome, figures: ServeProcess) -> None:
    key = home.key_file.read_text().strip()
    file = home.path / "c.toml"
    listed = json.loads(home.run("models", "--json", "--config", str(file)).stdout)["models"]
    expected = known(listed, "window", "longest_answer")
    with anthropic.Anthropic(base_url=figures.url, api_key=key) as client:
        page = client.models.list()
        assert {row.id: (row.max_input_tokens, row.max_tokens) for row in page.data} == expected
        assert client.models.retrieve("m-1").max_input_tokens == 1000
    with openai.OpenAI(base_url=f"{figures.url}/v1", api_key=key) as asking:
        rows = {row.id: row.model_dump() for row in asking.models.list().data}
    assert {
        name: (row.get("context_length"), (row.get("top_provider") or {}).get("max_completion_tokens"))
        for name, row in rows.items()
    } == expected
    assert "context_length" not in rows["auto"]


def test_an_invalid_figure_is_refused_with_its_line(home: UserHome) -> None:
    file = home.write("c.toml", '[models."kimi"]\nwindow = 0\nwindoww = 3\n')
    done = home.run("config", "check", "--config", str(file))
    assert done.returncode == 3
    assert "window" in done.stderr
    assert "c.toml:2" in done.stderr or "line 2" in done.stderr
