"""Points 15 and 18 of SECURITY.md: a secret in every setting, then a search for them in every output."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import main
from dragoman.gateway import admin
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.config import Config, build_config
from dragoman.gateway.recent import LogQuery
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.secrets import write_private
from dragoman.gateway.serve import running_gateway
from dragoman.simulator import running_simulator
from dragoman.upstream.credentials import SecretText, encoded_forms
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from tests.gateway.harness import (
    FAST_RETRIES,
    KEY,
    GatewayHarness,
    StreamClient,
    anthropic_body,
    gated_server,
    openai_body,
    start_gateway,
    upstream_config,
)
from tests.security.echo_upstream import EchoUpstream, run_echo_upstream, secret_forms

# No known pattern: they can be masked only by value. Some have characters that JSON, URLs and base64 encode differently.
SLOTS = {
    "client": "cAnArY-of-the-client/0001+=",
    "bearer": "cAnArY-in-the-environment/0002+=",
    "x-api-key": 'cAnArY-with-a-"quote"-and-\\-0003',
    "api-key": "cAnArY-of-a-file/0004+=",
    "x-goog-api-key": "cAnArY-of-gemini/0005+=",
    "team": "cAnArY-of-a-header/0006+=",
    "proxy": "cAnArY-of-the-proxy-0007",
    "bedrock": "cAnArY-of-bedrock/0008+=",
    "aws-id": "AKIACANARY0000000009",
    "aws-secret": "cAnArYsEcReTaCcEsSkEyOfAwS0000/000+0010=",
    "aws-session": "cAnArY-session-token/0011+==",
    "kiro-access": "cAnArY-access-token/0012+=",
    "kiro-refresh": "cAnArY-refresh-token/0013+=",
    "kiro-client": "cAnArY-client-secret/0014+=",
    "kiro-key": "cAnArY-kiro-api-key/0015+=",
    "literal": "cAnArY-written-in-clear-0016",
}
# Secrets that a client may send besides its key: unknown values, recognised by name or pattern.
STRAYS = {
    "header": "cAnArY-stray-in-a-header-0017",
    "cookie": "cAnArY-stray-in-a-cookie-0018",
    "query": "cAnArY-stray-in-the-query-0019",
    "shape": "sk-ant-cAnArY-stray-in-a-body-0020",
}
ALL = {**SLOTS, **STRAYS}
UPSTREAMS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def found(sink: str | bytes) -> list[str]:
    """Return the slots whose secrets are in an output, in any form."""
    text = sink.decode("utf-8", "replace") if isinstance(sink, bytes) else sink
    pair = base64.b64encode(f"us er:{SLOTS['proxy']}".encode()).decode()
    return [name for name, secret in ALL.items() if any(form in text for form in secret_forms(secret))] + (
        ["basic"] if pair in text else []
    )


def config_text(url: str, key_file: Path) -> str:
    def upstream_config(name: str, dialect: str, rest: str) -> str:
        return f'[upstreams.{name}]\ndialect = "{dialect}"\nbase_url = "{url}"\nmodels = ["m-{name}"]\nlimits.breaker = false\n{rest}\n'

    return "".join(
        (
            "allow_literal_secrets = true\n[server]\nkey = 'env:CLIENT_KEY'\nport = 0\n",
            upstream_config("one", "anthropic", "key = 'env:ANTHROPIC'"),
            upstream_config("two", "openai", f"key = ['env:BEARER', '{SLOTS['literal']}']"),
            upstream_config("three", "responses", f"key_header = 'api-key'\nkey = 'file:{key_file}'"),
            upstream_config("four", "gemini", "key = 'env:GEMINI'"),
            upstream_config("five", "bedrock", "region = 'us-east-1'\ncredentials = 'aws'"),
            upstream_config("six", "bedrock", "region = 'us-east-1'\nkey = 'env:BEDROCK'"),
            upstream_config("seven", "kiro", "credentials = 'store'"),
            upstream_config("eight", "kiro", "key = 'env:KIRO_KEY'"),
            upstream_config(
                "nine", "openai", f"proxy = 'http://us%20er:{SLOTS['proxy']}@{url.removeprefix('http://')}'"
            ),
            f"[upstreams.nine.headers]\nx-team-token = '{SLOTS['team']}'\n",
        )
    )


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[EchoUpstream, Path]]:
    """Prepare an environment, a home and an upstream with a secret in every slot; give the upstream and the config file."""
    for name in list(os.environ):
        if name.startswith(("XDG_", "AWS_", "DRAGOMAN_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    environ = {
        "HOME": str(tmp_path),
        "CLIENT_KEY": SLOTS["client"],
        "ANTHROPIC": SLOTS["x-api-key"],
        "BEARER": SLOTS["bearer"],
        "GEMINI": SLOTS["x-goog-api-key"],
        "BEDROCK": SLOTS["bedrock"],
        "KIRO_KEY": SLOTS["kiro-key"],
        "AWS_ACCESS_KEY_ID": SLOTS["aws-id"],
        "AWS_SECRET_ACCESS_KEY": SLOTS["aws-secret"],
        "AWS_SESSION_TOKEN": SLOTS["aws-session"],
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    key_file = tmp_path / "api-key"
    write_private(key_file, SLOTS["api-key"].encode())
    with run_echo_upstream() as echo_upstream:
        store = tmp_path / ".local/share/dragoman/credentials/kiro"
        store.mkdir(parents=True, mode=0o700)
        login = {
            "type": "kiro",
            "auth_method": "idc",
            "access_token": SLOTS["kiro-access"],
            "refresh_token": SLOTS["kiro-refresh"],
            "client_id": "a-client",
            "client_secret": SLOTS["kiro-client"],
            "expires_at": "2090-01-01T00:00:00Z",
            "profile_arn": "arn:aws:codewhisperer:us-east-1:123456789012:profile/ABCDEFGHIJKL",
            "endpoint": echo_upstream.url,
        }
        write_private(store / "default.json", json.dumps(login).encode())
        file = tmp_path / ".config/dragoman/config.toml"
        file.parent.mkdir(parents=True)
        file.write_text(config_text(echo_upstream.url, key_file))
        yield echo_upstream, file


def loaded(file: Path, **flags: Any) -> Config:
    return build_config(file.read_text(), file, os.environ, {"server.drain": 1, **flags}).config


def provoke(harness: GatewayHarness, echo_upstream: EchoUpstream) -> list[bytes]:
    """Cause every error whose message may contain a key; return the responses."""
    responses: list[bytes] = []
    text = f"my keys are {SLOTS['client']}, {SLOTS['bearer']} and:\n{STRAYS['shape']}"
    strays = {
        "x-api-key": STRAYS["header"],
        "cookie": f"session={STRAYS['cookie']}",
        "authorization": f"Bearer {harness.key}",
    }

    def ask(path: str, body: Any, **headers: str) -> None:
        status, response_headers, response = harness.request(path, body, key=None, **{**strays, **headers})
        responses.append(json.dumps([status, response_headers]).encode() + response)

    query = f"?key={STRAYS['query']}"
    echo_upstream.mode = "refuse"
    for name in UPSTREAMS:
        ask(f"/v1/messages{query}", anthropic_body(f"m-{name}", text))
        ask(f"/v1/chat/completions{query}", openai_body(f"m-{name}", text, stream=True))
    echo_upstream.mode = "stream"
    for name in ("one", "two"):
        ask("/v1/messages", anthropic_body(f"m-{name}", text, stream=True))
        ask("/v1/chat/completions", openai_body(f"m-{name}", text, stream=True))
        ask("/model/m-one/converse-stream", {"messages": [{"role": "user", "content": [{"text": text}]}]})
    ask(f"/v1/messages{query}", anthropic_body(SLOTS["bearer"], text))
    ask(f"/v1/models/{SLOTS['bearer'].rstrip('+=')}", b"")
    ask("/v1/messages", b'{"model": "' + SLOTS["literal"].encode() + b'", "messages": 5}')
    ask("/v1/messages", anthropic_body("m-one"), authorization=f"Bearer {SLOTS['x-api-key']}")
    ask("/v1/messages", anthropic_body("m-one"), authorization=f"Basic {SLOTS['client']}")
    return responses


def test_point_18_the_echo_upstream_does_repeat_every_secret(planted: tuple[EchoUpstream, Path]) -> None:
    """This checks the test itself: the upstream got every secret and echoed it."""
    echo_upstream, file = planted
    with running_gateway(loaded(file), access_log=quiet(io.StringIO()), retry_settings=FAST_RETRIES) as running:
        provoke(GatewayHarness(running, io.StringIO(), file.parent), echo_upstream)
    echo_upstream.mode = "refuse"
    responses = "".join(
        str(echo_upstream.respond(path, headers, body)) for _, path, headers, body in echo_upstream.requests
    )
    sent = "".join(f"{headers}{body!r}" for _, _, headers, body in echo_upstream.requests)
    never_sent = {"aws-secret", "client", "header", "cookie", "query"}
    assert set(ALL) - set(found(responses + sent)) <= never_sent
    assert {"client", "shape"} <= set(found(sent))  # in prompts, which clients may send
    assert {"header", "cookie", "query", "aws-secret"}.isdisjoint(found(sent))


def quiet(stream: io.StringIO, form: Any = "json", level: Any = "debug") -> AccessLog:
    return AccessLog(Redactor(), stream=stream, form=form, level=level)


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_point_18_no_log_metric_status_response_or_file_contains_a_secret(
    planted: tuple[EchoUpstream, Path], tmp_path: Path, form: str, level: str
) -> None:
    echo_upstream, file = planted
    log, state = io.StringIO(), tmp_path / "state"
    with running_gateway(
        loaded(file), state=state, access_log=quiet(log, form, level), retry_settings=FAST_RETRIES
    ) as running:
        harness = GatewayHarness(running, log, state)
        responses = provoke(harness, echo_upstream)
        gateway = running.gateway
        sinks: dict[str, str | bytes] = {
            "responses": b"\n".join(responses),
            "metrics": gateway.metrics(),
            "status": json.dumps(gateway.status()) + repr(gateway.status()),
            "cooldowns": json.dumps(gateway.cooldowns()),
            "recent log": b"".join(asyncio.run(gateway.log_page(LogQuery(details=True))).lines),
            "recent requests": jsonio.encode(asyncio.run(gateway.find_requests("req_"))),
            "activity": jsonio.encode(asyncio.run(gateway.activities())),
        }
        assert sinks["recent requests"].count(b"request_id") > 20  # type: ignore[arg-type]
    sinks["log"] = log.getvalue()
    sinks |= {f"file {path.name}": path.read_bytes() for path in state.rglob("*") if path.is_file()}
    assert {name: found(sink) for name, sink in sinks.items() if found(sink)} == {}
    assert sum(name.startswith("file req_") for name in sinks) >= 10  # refusal reports were written and searched
    assert b"***" in sinks["responses"]
    assert log.getvalue() or level == "error"


def test_point_18_a_key_given_as_model_name_is_in_no_metric_and_no_log_line(tmp_path: Path) -> None:
    with (
        running_simulator("openai") as simulator,
        start_gateway(upstream_config("one", "openai", simulator.url), tmp_path) as harness,
    ):
        for model in (KEY, STRAYS["shape"]):
            assert harness.request("/v1/chat/completions", openai_body(model))[0] == 200
        lines = harness.log_lines(2)
        outputs = (
            harness.running.gateway.metrics().decode()
            + json.dumps(harness.running.gateway.status())
            + json.dumps(lines)
        )
    assert 'model="***"' in outputs
    assert not [secret for secret in (KEY, STRAYS["shape"]) if secret in outputs]


@pytest.mark.parametrize(("path", "ask"), [("/v1/messages", anthropic_body), ("/v1/chat/completions", openai_body)])
def test_point_18_an_error_after_a_keep_alive_does_not_contain_the_key_it_quotes(
    path: str, ask: Any, tmp_path: Path
) -> None:
    error = b'{"type":"error","error":{"type":"invalid_request_error","message":"no: the-upstream-secret"}}'
    page = b"HTTP/1.1 400 Bad\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(error), error)
    with (
        gated_server(page) as (url, gate),
        start_gateway(upstream_config("one", "anthropic", url), tmp_path, server__ping=0.1) as harness,
        StreamClient(harness, path, ask(stream=True)) as client,
    ):
        assert client.read_until(b"ping").startswith(b"HTTP/1.1 200")
        gate.set()
        body = client.read_all()
        assert (b"no: ***" in body, b"the-upstream-secret" in body) == (True, False), body
        harness.log_lines()
        assert "the-upstream-secret" not in harness.text


def test_point_15_an_internal_error_is_logged_without_secrets(planted: tuple[EchoUpstream, Path]) -> None:
    _, file = planted
    log = io.StringIO()
    config = loaded(file)
    with running_gateway(config, access_log=quiet(log)) as running:
        [secret.reveal() for secret in config.secrets()]
        for secret in (SLOTS["client"], SLOTS["bearer"], SLOTS["x-api-key"], SLOTS["api-key"]):
            try:
                raise RuntimeError(f"while sending {secret} and {base64.b64encode(secret.encode()).decode()}")
            except RuntimeError as error:
                running.gateway.log.bug("req_1", error)
    assert "while sending" in log.getvalue()
    assert found(log.getvalue()) == []


def test_point_15_no_repr_contains_its_secret(planted: tuple[EchoUpstream, Path]) -> None:
    echo_upstream, file = planted
    config = loaded(file)
    [secret.reveal() for secret in config.secrets()]
    with running_gateway(config, access_log=quiet(io.StringIO()), retry_settings=FAST_RETRIES) as running:
        provoke(GatewayHarness(running, io.StringIO(), file.parent), echo_upstream)
        gateway = running.gateway
        fleet = gateway.upstreams
        assert fleet is not None
        values = [
            config,
            config.upstreams,
            gateway,
            running,
            fleet,
            gateway._admission,
            gateway._admission._keys,
            *config.secrets(),
        ]
        for backend in fleet.backends:
            values += [backend, backend.upstream, *backend.all_credentials]
            values += [vars(each) for each in backend.all_credentials if hasattr(each, "__dict__")]
        shown = [f"{value!r}{value}" for value in values]
    bearer = SecretText(SLOTS["bearer"])
    shown += [repr(bearer), str(bearer), f"{bearer}", format(bearer)]
    assert [text[:200] for text in shown if found(text)] == []


def test_point_15_no_exception_contains_a_secret(planted: tuple[EchoUpstream, Path]) -> None:
    """Check the message of a configuration error in each slot."""
    _, file = planted
    wrong = {
        "key": f"key = '{SLOTS['bearer']}'",
        "url": f"base_url = 'https://user:{SLOTS['proxy']}@host'",
        "proxy": f"proxy = 'socks5://user:{SLOTS['proxy']}@host:1'",
        "header": f"[upstreams.a.headers]\nx-token = '{SLOTS['team']}'",
    }
    for name, line in wrong.items():
        address = "" if name == "url" else "base_url = 'https://host'"
        text = f"[upstreams.a]\ndialect = 'openai'\n{address}\n{line}\n"
        with pytest.raises(Exception) as raised:
            build_config(text, file, os.environ, {})
        shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + str(vars(raised.value))
        assert found(shown) == [], name


COMMANDS = [
    ("status",),
    ("status", "--json"),
    ("log", "--notes", "-n", "1000"),
    ("log", "--notes", "--json", "-n", "1000"),
    ("top", "--once"),
    ("top", "--json"),
    ("reload",),
    ("doctor",),
    ("doctor", "--json"),
    ("doctor", "--share"),
    ("doctor", "--share", "--json"),
    ("config", "show"),
    ("config", "show", "--origin"),
    ("config", "show", "--json"),
    ("config", "check"),
    ("config", "check", "--json"),
    ("explain",),
    ("explain", "--json"),
    ("explain", "last"),
    ("explain", "last", "--json"),
    ("models",),
    ("models", "--json"),
    ("cooldown", "list"),
    ("cooldown", "list", "--json"),
    ("cooldown", "clear"),
    ("auth", "list"),
    ("auth", "list", "--json"),
    ("auth", "list", "--usage"),
    ("auth", "refresh", "kiro"),
    ("init", "--print"),
    ("run", "--print-env", "claude"),
]


def test_point_18_no_command_prints_a_secret(
    planted: tuple[EchoUpstream, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    echo_upstream, file = planted
    short = tempfile.mkdtemp(prefix="dgm")  # Unix socket paths are limited
    monkeypatch.setenv("DRAGOMAN_SERVER__ADMIN_SOCKET", f"{short}/a")
    socket = loaded(file).server.admin_socket
    printed: dict[str, list[str]] = {}
    with running_gateway(
        loaded(file), access_log=quiet(io.StringIO()), retry_settings=FAST_RETRIES, admin_socket=True
    ) as running:
        provoke(GatewayHarness(running, io.StringIO(), file.parent), echo_upstream)
        echo_upstream.mode = "refuse"
        for what in ("/status", "/metrics", "/cooldowns", "/log?details=1", "/requests?id=req_", "/activity"):
            printed[what] = found(admin.send_admin_request(socket, what))
        for words in COMMANDS:
            main([*words])
            out, err = capfd.readouterr()
            assert "Traceback" not in err, err
            printed[" ".join(words)] = found(out + err)
    shutil.rmtree(short)
    assert {name: slots for name, slots in printed.items() if slots} == {}


def test_point_15_no_secret_is_an_argument_or_in_a_url(planted: tuple[EchoUpstream, Path]) -> None:
    echo_upstream, file = planted
    with running_gateway(loaded(file), access_log=quiet(io.StringIO()), retry_settings=FAST_RETRIES) as running:
        provoke(GatewayHarness(running, io.StringIO(), file.parent), echo_upstream)
    assert found("".join(path for _, path, _, _ in echo_upstream.requests)) == []
    assert found(Path("/proc/self/cmdline").read_bytes()) == []


def test_point_18_every_spelling_of_a_secret_is_masked() -> None:
    for secret in ALL.values():
        redactor = Redactor(lambda secret=secret: [secret])  # type: ignore[misc]
        for before in ("", "a", "ab", "abc", "user:"):
            text = base64.b64encode(f"{before}{secret} and more".encode()).decode()
            core = max((each for each in encoded_forms(secret) if each in text), key=len)
            assert len(core) >= len(secret)
            assert core not in redactor.text(text)
        for form in secret_forms(secret):
            assert form not in redactor.text(f"it is {form}!")
    assert Redactor(lambda: ["short"]).text("a short word") == "a short word"
    shapes = (
        "sk-ant-0123456789abcdef01",
        "AKIA0123456789ABCDEF",
        "eyJhbGciOiJI.eyJzdWIiOiIx.sig",
        "aoa0123456789abcdefgh",
    )
    for shape in shapes:
        assert shape not in Redactor().text(json.dumps(f"one\n{shape}\ttwo"))


def test_point_18_secret_headers_are_masked_by_their_names() -> None:
    names = ("authorization", "x-api-key", "api-key", "cookie", "set-cookie", "x-amz-security-token", "x-goog-api-key")
    others = ("proxy-authorization", "x-auth-token", "ocp-apim-subscription-key", "x-team-secret", "x-amz-signature")
    request = HttpRequest("GET", "/", headers=tuple((name, "anything") for name in (*names, *others)))
    assert {value for _, value in Redactor().headers(request.headers)} == {"***"}
    assert Redactor().query("key=abc&a=b&access_token=c") == "key=***&a=b&access_token=***"
