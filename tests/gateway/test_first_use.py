"""The README's configuration, models that nothing names, lists of models, missing keys, probes."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway import model_lists
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.config import build_config
from dragoman.gateway.model_entries import MAX_ENTRIES
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.serve import running_gateway
from dragoman.simulator import Simulator, parse_script, running_simulator
from tests.gateway.harness import (
    CLIENTS,
    FAST_RETRIES,
    KEY,
    GatewayHarness,
    anthropic_body,
    client_request,
    fixed_response_server,
    gated_server,
    openai_body,
    start_gateway,
    upstream_config,
    wait_until,
)
from tests.gateway.test_accounts import Accounts
from tests.gateway.test_commands import UserHome, home, wait_for

__all__ = ["home"]

README = Path(__file__).parents[2] / "README.md"
KIMI = "kimi-k2.5"


def readme_config() -> str:
    """The three lines of TOML in the README."""
    [found] = re.findall(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(found.strip().splitlines()) == 3
    return str(found)


@contextmanager
def gateway(text: str, state: Path, environ: dict[str, str] | None = None, **flags: Any) -> Iterator[GatewayHarness]:
    """Run a gateway in this environment, with a log of all levels."""
    log = io.StringIO()
    access_log = AccessLog(Redactor(), stream=log, form="json", level="debug")
    settings = {name.replace("__", "."): value for name, value in flags.items()}
    config = build_config(
        text, state / "config.toml", {"HOME": str(state), **(environ or {})}, {"server.port": 0, **settings}
    ).config
    with running_gateway(config, state=state, access_log=access_log, retry_settings=FAST_RETRIES, key=KEY) as running:
        yield GatewayHarness(running, log, state)


@pytest.fixture(scope="module")
def moonshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayHarness, Simulator]]:
    """The README's configuration, with the simulator of OpenAI's dialect in place of the service."""
    with (
        running_simulator("openai") as simulator,
        gateway(
            readme_config(),
            tmp_path_factory.mktemp("state"),
            {"MOONSHOT_API_KEY": "sk-1"},
            upstreams__kimi__base_url=simulator.url,
        ) as harness,
    ):
        yield harness, simulator


def events(harness: GatewayHarness, name: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, harness.text.splitlines()) if line["event"] == name]


def sent_model(simulator: Simulator) -> str:
    """The model in the last request that the upstream got."""
    body: Any = simulator.requests[-1].json
    return str(body["model"])


# --- models that no route names


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("client", "model"),
    [
        ("anthropic", "claude-opus-5-5"),  # Claude Code
        ("anthropic", "claude-haiku-4-5"),
        ("responses", "gpt-6.1-sol"),  # Codex
        ("gemini", "gemini-2.5-flash"),  # gemini-cli
        ("openai", "gpt-5"),
        ("bedrock", "anthropic.claude-3-haiku"),
    ],
)
def test_the_readmes_configuration_answers_every_client_and_says_which_model_did(
    moonshot: tuple[GatewayHarness, Simulator], client: str, model: str, stream: bool
) -> None:
    harness, simulator = moonshot
    before, logged = simulator.total, len(harness.log_lines(0))
    status, headers, body = harness.request(*client_request(client, stream=stream, model=model))
    assert (status, headers["dragoman-model"], headers["dragoman-upstream"]) == (200, KIMI, "kimi"), body
    assert simulator.total == before + 1  # the upstream's list is not asked for: the default is known
    assert sent_model(simulator) == KIMI
    line = harness.log_lines(logged + 1)[-1]
    assert (line["model"], line["used_model"]) == (model, KIMI)
    warnings = [each for each in events(harness, "default_model") if each["model"] == model]
    assert [(each["level"], each["used_model"], each["upstream"]) for each in warnings] == [("warning", KIMI, "kimi")]
    assert "[upstreams.kimi]" in warnings[0]["message"]


def test_a_model_of_the_upstream_keeps_its_name_without_a_warning(
    moonshot: tuple[GatewayHarness, Simulator],
) -> None:
    harness, simulator = moonshot
    for model, used in (("kimi-latest", "kimi-latest"), ("kimi/claude-x", "claude-x")):
        _, headers, _ = harness.request("/v1/messages", anthropic_body(model))
        assert (headers["dragoman-model"], sent_model(simulator)) == (used, used)
        assert not [each for each in events(harness, "default_model") if each["model"] == model]


@pytest.mark.parametrize("model", ["naïve 模型", "a%b", "\u202eevil", "x" * 2000])
def test_the_header_holds_any_name(model: str, tmp_path: Path) -> None:
    with (
        running_simulator("openai") as simulator,
        start_gateway(upstream_config("one", "openai", simulator.url), tmp_path) as harness,
    ):
        status, headers, _ = harness.request("/v1/messages", anthropic_body(model))
        assert status == 200
        assert re.fullmatch(r"[\x21-\x7e]{1,300}", headers["dragoman-model"])
        assert sent_model(simulator) == model


def test_warnings_are_bounded(tmp_path: Path) -> None:
    with (
        running_simulator("openai") as simulator,
        start_gateway(upstream_config("one", "openai", simulator.url, 'default_model = "d"'), tmp_path) as harness,
    ):
        catalogue = harness.running.gateway.upstreams.catalogue  # type: ignore[union-attr]
        loop = harness.running.loop
        assert loop is not None

        async def find_many() -> None:
            for number in range(600):
                await catalogue.find(f"name-{number}")
            await catalogue.find("name-0")

        asyncio.run_coroutine_threadsafe(find_many(), loop).result(60)
        wait_until(lambda: len(events(harness, "default_model")) >= 256)
        assert len(events(harness, "default_model")) == 256 and len(catalogue.cached) <= 256


def test_the_model_in_the_header_is_the_upstreams_own_name_of_it(tmp_path: Path) -> None:
    with (
        running_simulator("kiro") as simulator,
        start_gateway(upstream_config("one", "kiro", simulator.url), tmp_path) as harness,
    ):
        _, headers, _ = harness.request("/v1/messages", anthropic_body("claude-sonnet-4-5"))
        assert headers["dragoman-model"] == "claude-sonnet-4.5"
        assert harness.log_lines()[-1]["used_model"] == "claude-sonnet-4.5"


def test_a_name_that_kiro_does_not_list_is_answered_by_its_default_model(tmp_path: Path) -> None:
    """Claude Code's default model is not among Kiro's, though the pattern of the preset matches it."""
    text = '[upstreams.kiro]\npreset = "kiro"\nkey = "env:K"\n'
    with (
        running_simulator("kiro") as simulator,
        gateway(text, tmp_path, {"K": "k"}, upstreams__kiro__base_url=simulator.url) as harness,
    ):
        status, headers, _ = harness.request("/v1/messages", anthropic_body("claude-opus-5-5"))
        assert (status, headers["dragoman-model"]) == (200, "claude-sonnet-4.5")
        assert [each.path for each in simulator.requests] == ["/ListAvailableModels", "/generateAssistantResponse"]
        assert harness.request("/v1/messages", anthropic_body("claude-opus-4-8"))[1]["dragoman-model"] == (
            "claude-opus-4.8"
        )


def vllm(url: str) -> str:
    return f'[upstreams.box]\npreset = "vllm"\nbase_url = "{url}"\nkey = "env:K"\n'


def test_a_server_of_any_model_answers_with_the_first_of_its_own_list(tmp_path: Path) -> None:
    with running_simulator("openai") as simulator:
        for _ in range(2):  # the second gateway knows the list from its file
            with gateway(vllm(simulator.url), tmp_path, {"K": "k"}) as harness:
                for model in ("claude-opus-5-5", "gpt-5-mini"):
                    status, headers, _ = harness.request("/v1/messages", anthropic_body(model))
                    assert (status, headers["dragoman-model"]) == (200, "sim-model")
        assert [each.request.method for each in simulator.requests].count("GET") == 1
        [file] = (tmp_path / "models").iterdir()
        assert (file.name, file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (
            "box.json",
            0o600,
            0o700,
        )


@pytest.mark.parametrize("damage", ["{", '{"service": "of another", "at": 1, "models": [["old", null, null]]}', ""])
def test_a_file_of_another_service_or_a_damaged_one_is_ignored(damage: str, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir(mode=0o700)
    (tmp_path / "models" / "box.json").write_text(damage)
    (tmp_path / "models" / "box.json").chmod(0o600)
    with running_simulator("openai") as simulator, gateway(vllm(simulator.url), tmp_path, {"K": "k"}) as harness:
        assert harness.request("/v1/messages", anthropic_body("x"))[1]["dragoman-model"] == "sim-model"


def test_a_list_that_fails_delays_no_second_request_and_the_name_is_kept(tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 500 no\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
    with fixed_response_server(refusal) as url, gateway(vllm(url), tmp_path, {"K": "k"}) as harness:
        for _ in range(2):
            _, headers, _ = harness.request("/v1/messages", anthropic_body("claude-x"))
            assert headers["dragoman-model"] == "claude-x"
        [line] = events(harness, "model_list")  # logged once
        assert (line["level"], line["upstream"]) == ("debug", "box")


def test_a_server_that_starts_late_is_found_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_lists, "_PAUSE", 0.0)
    with running_simulator("openai", script=parse_script('[tokens]\naccess = ["other"]\n')) as simulator:
        with gateway(vllm(simulator.url), tmp_path, {"K": "k"}) as harness:
            assert harness.request("/v1/messages", anthropic_body("claude-x"))[1]["dragoman-model"] == "claude-x"
        port = int(simulator.url.rpartition(":")[2])
    with gateway(vllm(simulator.url), tmp_path, {"K": "k"}) as harness:
        assert harness.request("/v1/messages", anthropic_body("claude-x"))[1]["dragoman-model"] == "claude-x"
        with running_simulator("openai", port=port):
            wait_until(
                lambda: (
                    harness.request("/v1/messages", anthropic_body("claude-x"))[1].get("dragoman-model") == "sim-model"
                )
            )


def test_an_old_list_is_used_and_renewed_in_the_background(tmp_path: Path) -> None:
    with running_simulator("openai") as simulator:
        with gateway(vllm(simulator.url), tmp_path, {"K": "k"}) as harness:
            harness.request("/v1/messages", anthropic_body("x"))
            wait_until((tmp_path / "models" / "box.json").exists)
        file = tmp_path / "models" / "box.json"
        saved = json.loads(file.read_text())
        saved["at"] -= 2 * 24 * 3600
        saved["models"] = [["an-old-model", None, None]]
        file.write_text(json.dumps(saved))
        with gateway(vllm(simulator.url), tmp_path, {"K": "k"}) as harness:
            assert harness.request("/v1/messages", anthropic_body("x"))[1]["dragoman-model"] == "an-old-model"
            wait_until(lambda: harness.request("/v1/messages", anthropic_body("x"))[1]["dragoman-model"] == "sim-model")


def test_a_refused_default_model_makes_the_list_unknown(tmp_path: Path) -> None:
    """The server was started anew with another model."""
    script = parse_script(
        'then = "model"\n[[turn]]\nstatus = 404\ntype = "not_found_error"\nmessage = "no such model"\n'
    )
    with (
        running_simulator("openai", script=script) as simulator,
        gateway(vllm(simulator.url), tmp_path, {"K": "k"}) as harness,
    ):
        upstreams = harness.running.gateway.upstreams
        assert upstreams is not None
        assert harness.request("/v1/models", method="GET")[0] == 200
        own = upstreams.catalogue.lists.by_upstream["box"]
        own.at -= 3600
        assert harness.request("/v1/messages", anthropic_body("x"))[0] == 404
        assert not own.models
        assert harness.request("/v1/messages", anthropic_body("x"))[1]["dragoman-model"] == "sim-model"


# --- lists of models, and names that they contain

LISTED: dict[str, Callable[[Any], list[str]]] = {
    "/v1/models": lambda body: [each["id"] for each in body["data"]],
    "/v1beta/models": lambda body: [each["name"].removeprefix("models/") for each in body["models"]],
    "/api/tags": lambda body: [each["name"] for each in body["models"]],
    "/ListAvailableModels": lambda body: [each["modelId"] for each in body["models"]],
}


@contextmanager
def two_upstreams(state: Path) -> Iterator[tuple[GatewayHarness, list[Simulator]]]:
    with ExitStack() as stack:
        simulators = [stack.enter_context(running_simulator(dialect)) for dialect in ("openai", "anthropic")]
        text = upstream_config("one", "openai", simulators[0].url, 'default_model = "big"\nsmall_model = "little"')
        text += upstream_config("two", "anthropic", simulators[1].url)
        text += '[[routes]]\nmatch = "alias"\nupstream = "two"\nmodel = "target"\n[default]\nupstream = "one"\n'
        yield stack.enter_context(start_gateway(text, state)), simulators


def test_the_list_has_routes_targets_defaults_and_the_upstreams_own_models_in_every_shape(tmp_path: Path) -> None:
    with two_upstreams(tmp_path) as (harness, simulators):
        assert [each.total for each in simulators] == [0, 0]  # nothing is asked at start
        expected = ["alias", "two/target", "big", "little", "sim-model", "two/sim-model"]
        for path, names in LISTED.items():
            assert names(json.loads(harness.request(path, method="GET")[2])) == expected, path
        page = json.loads(harness.request("/v1/models", method="GET", anthropic_version="2023-06-01")[2])
        assert [each["id"] for each in page["data"]] == expected
        assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "alias", "two/sim-model")
        assert [[each.request.method for each in simulator.requests] for simulator in simulators] == [["GET"], ["GET"]]
        for name in expected:
            assert harness.request("/v1/messages", anthropic_body(name))[0] == 200
            for path in (f"/v1/models/{name}", f"/v1/models/{name.replace('/', '%2F')}"):
                assert json.loads(harness.request(path, method="GET")[2])["id"] == name
        assert harness.request("/v1/models/nothing", method="GET")[0] == 404


def test_codex_finds_its_form_in_the_list(tmp_path: Path) -> None:
    with two_upstreams(tmp_path) as (harness, _):
        listed = json.loads(harness.request("/v1/models?client_version=0.169.0", method="GET")[2])
        assert [each["slug"] for each in listed["models"]] == [each["id"] for each in listed["data"]]
        assert "models" not in json.loads(harness.request("/v1/models", method="GET")[2])


def test_claude_code_sees_other_models_under_names_that_it_lists(tmp_path: Path) -> None:
    text = """[store]
url = "sqlite:%s"
""" % (tmp_path / "store")
    with running_simulator("openai") as simulator:
        text += upstream_config("one", "openai", simulator.url, 'models = ["kimi-k2", "claude-x"]')
        with start_gateway(text, tmp_path, server__claude_aliases=True) as harness:
            page = json.loads(harness.request("/v1/models?limit=1000", method="GET", anthropic_version="2023-06-01")[2])
            shown = {each["id"]: each["display_name"] for each in page["data"]}
            assert shown == {
                "kimi-k2-as-claude": "kimi-k2",
                "claude-x": "claude-x",
                "sim-model-as-claude": "sim-model",
            }
            key, _ = Accounts(tmp_path / "store").create("one", models=("kimi-k2",))
            for model, status in (("kimi-k2-as-claude", 200), ("kimi-k2", 200), ("claude-x", 403)):
                assert harness.request("/v1/messages", anthropic_body(model), key=key)[0] == status
            assert json.loads(simulator.requests[-2].body)["model"] == "kimi-k2"
            one = harness.request("/v1/models/kimi-k2-as-claude", method="GET", anthropic_version="2023-06-01")[2]
            assert json.loads(one)["id"] == "kimi-k2"
            others = json.loads(harness.request("/v1/models", method="GET")[2])["data"]
            assert [each["id"] for each in others] == ["kimi-k2", "claude-x", "sim-model"]
        with start_gateway(text, tmp_path) as harness:
            page = json.loads(harness.request("/v1/models", method="GET", anthropic_version="2023-06-01")[2])
            assert [each["id"] for each in page["data"]] == ["kimi-k2", "claude-x", "sim-model"]


def test_a_list_request_does_not_wait_for_an_upstream_that_hangs(tmp_path: Path) -> None:
    with gated_server(b"") as (url, gate), running_simulator("openai") as simulator:
        text = upstream_config("slow", "openai", url, 'default_model = "big"')
        text += upstream_config("good", "openai", simulator.url)
        with start_gateway(text, tmp_path) as harness:
            names = LISTED["/v1/models"](json.loads(harness.request("/v1/models", method="GET")[2]))
            assert (not gate.is_set() and names == ["slow/big", "sim-model"]) or names == ["big", "sim-model"]
            gate.set()


def test_a_list_is_bounded_in_names_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"data": [{"id": f"m-{number}"} for number in range(5000)]}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    with fixed_response_server(head % len(body) + body) as url:
        text = upstream_config("one", "openai", url)
        with start_gateway(text, tmp_path / "whole") as harness:
            names = LISTED["/v1/models"](json.loads(harness.request("/v1/models", method="GET")[2]))
            assert len(names) == MAX_ENTRIES == 2000
        monkeypatch.setattr(model_lists, "_MAX_BYTES", 1000)
        with start_gateway(text, tmp_path / "cut") as harness:
            assert LISTED["/v1/models"](json.loads(harness.request("/v1/models", method="GET")[2])) == []
            assert harness.request("/v1/models", method="GET")[0] == 200
            assert len(events(harness, "model_list")) == 1


def test_one_fetch_serves_all_waiting_requests_and_a_failure_is_remembered(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with running_simulator("openai", script=parse_script('[tokens]\naccess = ["other"]\n')) as simulator:
        text = upstream_config("one", "openai", simulator.url)
        with start_gateway(text, tmp_path) as harness, ThreadPoolExecutor(8) as pool:
            done = list(pool.map(lambda _: harness.request("/v1/models", method="GET")[0], range(16)))
            assert done == [200] * 16
            assert simulator.total == 1
            assert harness.request("/v1/messages", anthropic_body())[0] == 401  # the list is not asked again
            assert simulator.total == 2


def test_dragoman_models_asks_the_running_gateway_or_the_upstreams(home: UserHome) -> None:
    with running_simulator("openai") as simulator:
        file = home.path / ".config/dragoman/config.toml"
        file.parent.mkdir(parents=True)
        file.write_text(vllm(simulator.url) + '[[routes]]\nmatch = "alias"\nupstream = "box"\nmodel = "sim-model"\n')
        lone_upstream = home.run("models", "--json", K="k")
        assert simulator.total == 1
        with home.serving(K="k"):
            document = json.loads(home.run("models", "--json").stdout)  # without the key: the gateway has it
            page = home.run("models")
        offline = json.loads(home.run("models", "--json", "--offline").stdout)
    assert [(row["id"], row["source"]) for row in document["models"]] == [("alias", "route"), ("sim-model", "target")]
    assert json.loads(lone_upstream.stdout)["models"] == document["models"]
    assert document["upstreams"][0]["list"]["models"] == 1
    assert re.search(r"^alias +box as sim-model +a route$", page.stdout, re.MULTILINE), page.stdout
    assert [row["id"] for row in offline["models"]] == ["alias", "sim-model"]


def test_a_gateway_of_several_processes_lists_its_models(home: UserHome) -> None:
    with running_simulator("openai") as simulator:
        file = home.path / ".config/dragoman/config.toml"
        file.parent.mkdir(parents=True)
        file.write_text(vllm(simulator.url))
        with home.serving("--workers", "2", K="k"):
            document = json.loads(home.run("models", "--json").stdout)
    assert [row["id"] for row in document["models"]] == ["sim-model"]


# --- missing keys and headers

SECRETS = {
    "env": ("env:NO_SUCH_KEY", "environment variable NO_SUCH_KEY is not set. Set it"),
    "missing file": ("file:nothing-here", "file nothing-here: no such file or directory"),
    "open file": ("file:open", "file open: other users can read the file"),
    "command": ("cmd:false", "command false: the command ended with status 1"),
}


def keyed(url: str, key: str, name: str = "kimi") -> str:
    return f'[upstreams.{name}]\npreset = "moonshot"\nbase_url = "{url}"\nkey = "{key}"\n'


@pytest.mark.parametrize("kind", SECRETS)
def test_a_missing_key_is_a_warning_at_start_and_a_500_that_names_it(kind: str, tmp_path: Path) -> None:
    key, words = SECRETS[kind]
    (tmp_path / "open").write_text("sk-1")
    (tmp_path / "open").chmod(0o644)
    with running_simulator("openai") as simulator, gateway(keyed(simulator.url, key), tmp_path) as harness:
        wait_until(lambda: events(harness, "upstream_key"))
        [line] = events(harness, "upstream_key")
        message = line["message"]
        assert line["level"] == "warning"
        assert message.startswith("Upstream 'kimi' has no key: ") and words in message
        assert message.endswith("or change [upstreams.kimi] key.")
        for client in CLIENTS:
            for stream in (False, True):
                status, headers, body = harness.request(*client_request(client, stream=stream))
                assert (status, headers["x-should-retry"]) == (500, "false"), (client, body)
                assert ("has no key" in body.decode() and "NO_SUCH" in body.decode()) or kind != "env"
        assert simulator.total == 0
        rows: Any = harness.running.gateway.status()["upstreams"]
        status_row = rows[0]
        [credential] = status_row["credentials"]
        assert (credential["state"], credential["problem"]) == ("missing", message)
        assert not status_row["cooldowns"]


def test_another_target_answers_when_a_key_is_missing(tmp_path: Path) -> None:
    with running_simulator("openai") as simulator:
        text = keyed(simulator.url, "env:NO_SUCH_KEY", "broken") + keyed(simulator.url, "env:K", "good")
        text += '[[routes]]\nmatch = "*"\nupstream = "broken"\nmodel = "kimi-1"\nfallbacks = "good/kimi-2"\n'
        with gateway(text, tmp_path, {"K": "k"}) as harness:
            status, headers, _ = harness.request("/v1/messages", anthropic_body())
            assert (status, headers["dragoman-upstream"], headers["dragoman-model"]) == (200, "good", "kimi-2")
            line = harness.log_lines()[-1]
            assert line["tried"] == ["broken: credential"] and line["attempts"] == 2


def test_a_missing_key_beside_a_good_one_is_skipped(tmp_path: Path) -> None:
    with running_simulator("openai") as simulator:
        text = keyed(simulator.url, "env:K").replace('"env:K"', '["env:NO_SUCH_KEY", "env:K"]')
        with gateway(text, tmp_path, {"K": "k"}) as harness:
            assert [harness.request("/v1/chat/completions", openai_body())[0] for _ in range(4)] == [200] * 4
            assert "has no key 1: environment variable NO_SUCH_KEY" in events(harness, "upstream_key")[0]["message"]


def test_a_missing_header_is_reported_like_a_key(tmp_path: Path) -> None:
    with running_simulator("openai") as simulator:
        text = keyed(simulator.url, "env:K") + '[upstreams.kimi.headers]\nx-team-token = "env:NO_TEAM"\n'
        with gateway(text, tmp_path, {"K": "k"}) as harness:
            status, _, body = harness.request("/v1/messages", anthropic_body())
            assert status == 500 and b"[upstreams.kimi.headers] x-team-token" in body
            assert simulator.total == 0
            rows: Any = harness.running.gateway.status()["upstreams"]
            assert [row["state"] for row in rows[0]["credentials"] if "state" in row] == ["missing"]


def test_a_key_that_appears_is_used_without_a_restart(tmp_path: Path) -> None:
    with running_simulator("openai") as simulator, gateway(keyed(simulator.url, "file:key"), tmp_path) as harness:
        assert harness.request("/v1/messages", anthropic_body())[0] == 500
        (tmp_path / "key").write_text("sk-1")
        (tmp_path / "key").chmod(0o600)
        assert harness.request("/v1/messages", anthropic_body())[0] == 200
        rows: Any = harness.running.gateway.status()["upstreams"]
        assert "state" not in rows[0]["credentials"][0]


def test_a_missing_kiro_login_is_a_500_that_says_to_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    with running_simulator("kiro") as simulator:
        text = f'[upstreams.kiro]\npreset = "kiro"\nbase_url = "{simulator.url}"\n'
        with gateway(text, tmp_path) as harness:
            status, _, body = harness.request("/v1/messages", anthropic_body("claude-sonnet-4.5"))
            assert status == 500 and b"dragoman auth login kiro" in body
            [line] = events(harness, "upstream_key")
            assert line["message"].startswith("Upstream 'kiro' has no login: no Kiro login was found")


def test_serve_warns_at_start_and_at_reload_and_status_shows_it(home: UserHome) -> None:
    import signal

    file = home.write("c.toml", keyed("http://127.0.0.1:9", "env:NO_SUCH_KEY"))
    with home.serving("--config", str(file)) as served:
        wait_for(lambda: served.log.count("NO_SUCH_KEY is not set") == 1)
        assert '"level":"warning"' in served.log
        shown = home.run("status", "--config", str(file)).stdout
        assert "missing" in shown and "NO_SUCH_KEY is not set" in shown
        served.process.send_signal(signal.SIGHUP)
        wait_for(lambda: '"reloaded"' in served.log)
        assert served.log.count("NO_SUCH_KEY is not set") == 2
        assert "warning: Upstream 'kimi' has no key" in home.run("reload").stderr
        [warning] = json.loads(home.run("reload", "--json").stdout)["warnings"]
        assert "NO_SUCH_KEY is not set" in warning


# --- mistyped models and probes of clients


def test_a_mistyped_model_that_the_default_route_answers_is_visible(tmp_path: Path) -> None:
    with running_simulator("openai") as simulator:
        text = upstream_config("one", "openai", simulator.url, 'models = ["good-*"]')
        text += upstream_config("two", "openai", simulator.url) + '[default]\nupstream = "one"\nmodel = "good-1"\n'
        with start_gateway(text, tmp_path) as harness:
            for _ in range(3):
                _, headers, _ = harness.request("/v1/messages", anthropic_body("godo-1"))
                assert headers["dragoman-model"] == "good-1"
            [line] = events(harness, "default_model")
            assert (line["level"], line["model"], line["used_model"]) == ("warning", "godo-1", "good-1")
            harness.request("/v1/messages", anthropic_body("good-1"))
            assert len(events(harness, "default_model")) == 1


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("path", ["/", "/api/hello"])
def test_a_clients_probe_is_answered_and_not_logged(method: str, path: str, harness: GatewayHarness) -> None:
    before = harness.text
    status, _, body = harness.request(path, method=method, key=None)
    assert (status, body) == (200, b"" if method == "HEAD" else b"ok\n")
    assert harness.text == before
