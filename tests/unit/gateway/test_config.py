"""The whole configuration: layers, refused values and their messages, presets, reloading."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, structs

from dragoman.errors import LocalMisuse
from dragoman.gateway import config as tables
from dragoman.gateway.account_config import AccountSettings, PriceSettings, StoreSettings
from dragoman.gateway.config import Config, LoadedConfig, build_config, load_config, load_with_origins
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.limits import RequestLimits
from dragoman.gateway.presets import PRESETS
from dragoman.gateway.upstream_config import SimulatorSettings, TimeoutSettings, UpstreamLimits, UpstreamTable
from dragoman.translate import TranslationSettings

FILE = Path("/home/u/.config/dragoman/config.toml")
PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
KIMI = '[upstreams.kimi]\npreset = "moonshot"\nkey = "env:MOONSHOT_API_KEY"\n'


def loaded(text: str, environ: Mapping[str, str] | None = None, **flags: Any) -> LoadedConfig:
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    return build_config(text, FILE, {"HOME": "/home/u", **(environ or {})}, dotted)


def config(text: str, environ: Mapping[str, str] | None = None, **flags: Any) -> Config:
    return loaded(text, environ, **flags).config


def problems(text: str, environ: Mapping[str, str] | None = None, **flags: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(text, environ, **flags)
    return [str(problem).replace(str(FILE), "FILE") for problem in caught.value.problems]


# --- layers


def test_each_layer_overrides_the_one_below() -> None:
    text, environ = "[server]\nport = 2\n", {"DRAGOMAN_SERVER__PORT": "3"}
    assert config("").server.port == 8787
    assert config(text).server.port == 2
    assert config(text, environ).server.port == 3
    assert config(text, environ, server__port=4).server.port == 4
    assert config(text, environ, server__port=None).server.port == 3


def test_every_value_has_its_origin() -> None:
    leaves = loaded(KIMI + "[server]\nport = 2\n", {"DRAGOMAN_SERVER__PING": "3"}, server__drain=4).leaves
    origins = {key: str(leaf.origin).replace(str(FILE), "FILE") for key, leaf in leaves.items()}
    assert origins["server", "host"] == "default"
    assert origins["server", "port"] == "FILE:5"
    assert origins["server", "ping"] == "environment DRAGOMAN_SERVER__PING"
    assert origins["server", "drain"] == "flag server.drain"
    assert origins["upstreams", "kimi", "base_url"] == "preset moonshot"
    assert origins["upstreams", "kimi", "key"] == "FILE:3"


def test_environment_variables_are_converted_to_the_type_of_the_setting() -> None:
    found = config(
        KIMI.replace("kimi", "my-box"),
        {
            "DRAGOMAN_EXPLAIN": "false",
            "DRAGOMAN_SERVER__HOSTS": '["a", "b"]',
            "DRAGOMAN_SERVER__PING": "2.5",
            "DRAGOMAN_UPSTREAMS__MY_BOX__LIMITS__CONCURRENCY": "7",
            "DRAGOMAN_UPSTREAMS__MY_BOX__SETTINGS__CUSTOM_TOOLS": "true",
            "DRAGOMAN_SERVER__DRAIN": "",
        },
    )
    assert (found.explain, found.server.hosts, found.server.ping) == (False, ("a", "b"), 2.5)
    assert found.upstreams["my-box"].limits.concurrency == 7
    assert getattr(found.upstreams["my-box"].dialect.codec, "custom_tools") is True  # noqa: B009
    assert found.server.drain == 120


def test_a_whole_upstream_can_come_from_the_environment() -> None:
    found = config("", {"DRAGOMAN_UPSTREAMS__KIMI__PRESET": "moonshot", "DRAGOMAN_UPSTREAMS__KIMI__KEY": "sk-1"})
    assert list(found.upstreams) == ["kimi"]
    assert found.upstreams["kimi"].keys[0].reveal() == "sk-1"


def test_lists_of_a_higher_layer_replace_those_below() -> None:
    routes = '[[routes]]\nmatch = "a"\nupstream = "kimi"\n[[routes]]\nmatch = "b"\nupstream = "kimi"\n'
    environ = {"DRAGOMAN_ROUTES": '[{match = "c", upstream = "kimi"}]'}
    assert config(KIMI + routes).routes.names() == ["a", "b"]
    assert config(KIMI + routes, environ).routes.names() == ["c"]


def test_an_unknown_variable_is_reported_with_a_suggestion() -> None:
    found = config("", {"DRAGOMAN_SERVER_PORT": "1", "DRAGOMAN_EXPLIAN": "1", "DRAGOMAN_CONFIG": "x"})
    assert found.warnings == (
        "DRAGOMAN_EXPLIAN is not a setting and is ignored; did you mean DRAGOMAN_EXPLAIN?",
        "DRAGOMAN_SERVER_PORT is not a setting and is ignored; did you mean DRAGOMAN_SERVER__PORT?",
    )


def test_variables_that_kubernetes_sets_for_a_service_named_dragoman_are_ignored() -> None:
    links = ("DRAGOMAN_PORT", "DRAGOMAN_SERVICE_HOST", "DRAGOMAN_SERVICE_PORT_HTTP", "DRAGOMAN_PORT_8787_TCP_ADDR")
    assert config("", dict.fromkeys(links, "tcp://10.0.0.1:8787")).warnings == ()


# --- refused values and their messages


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprt = 1", "FILE:2: server.prt: there is no such key (did you mean port?)"),
        ("[server]\n\nport = 'x'", "FILE:3: server.port: expected a whole number, got a string"),
        ("[server]\nport = 70000", "FILE:2: server.port: expected a whole number <= 65535"),
        ("server = 3", "FILE:1: server: expected a table, got a whole number"),
        ("[log]\nlevel = 'warn'", "FILE:2: log.level: 'warn' is not allowed; use one of debug, info, warning, error"),
        ("[server]\nengine = 'own'", "FILE:2: server.engine: there is no such key (it was removed: the gateway has one HTTP server; delete this setting)"),
        ("x = 1", "FILE:1: x: there is no such key (known here: server, log,"),
        (KIMI + "url = 'x'", "FILE:4: upstreams.kimi.url: there is no such key (did you mean base_url?)"),
        (KIMI + "api_key = 'x'", "FILE:4: upstreams.kimi.api_key: there is no such key (did you mean key?)"),
        (KIMI + "settings = { max_tolkens_field = 1 }", "FILE:4: upstreams.kimi.settings.max_tolkens_field: there is no such key (did you mean max_tokens_field?)"),
        (KIMI + "settings = { more_sampling = [1] }", "FILE:4: upstreams.kimi.settings.more_sampling: item [0]: expected a string, got a whole number"),
        (KIMI + "timeouts = { idle = 0 }", "FILE:4: upstreams.kimi.timeouts.idle: expected a number > 0.0"),
        (KIMI + "timeouts = { idle = nan }", "FILE:4: upstreams.kimi.timeouts.idle: expected a number > 0.0"),
        (KIMI + "translation = { raw_tools = 'kimmi' }", "FILE:4: upstreams.kimi.translation.raw_tools: there is no raw tool format 'kimmi' (did you mean kimi?)"),
        ("[upstreams.k]\npreset = 'kiro'\nsettings = { pairing = 'x' }", "FILE:3: upstreams.k.settings.pairing: 'x' is not allowed; use one of placeholders, merge"),
        ("[upstreams.k]\npreset = 'kiro'\nregion = 'evil.test/'", "FILE:3: upstreams.k.region: 'evil.test/' is not a region"),
        ("[upstreams.k]\npreset = 'kiro'\ncredentials = 'idee'", "FILE:3: upstreams.k.credentials: there is no credential source 'idee' (did you mean ide?)"),
        ("[upstreams.b]\npreset = 'bedrock'", "FILE:1: upstreams.b: region is missing"),
        ("[upstreams.a]", "FILE:1: upstreams.a: set a preset, or a dialect and a base_url"),
        ("[upstreams.a]\npreset = 'moonshoot'", "FILE:2: upstreams.a.preset: there is no preset 'moonshoot' (did you mean moonshot?)"),
        ("[upstreams.a]\ndialect = 'openapi'", "FILE:2: upstreams.a.dialect: there is no dialect 'openapi' (did you mean openai?)"),
        ("[upstreams.a]\ndialect = 'openai'", "FILE:1: upstreams.a: base_url is missing"),
        ("[upstreams.'a/b']\npreset = 'vllm'", "FILE:1: upstreams.a/b: the name of an upstream may have letters"),
        ("[upstreams.a]\npreset = 'vllm'\nbase_url = 'ftp://x'", "FILE:3: upstreams.a.base_url: expected an address that begins"),
        ("[upstreams.a]\npreset = 'vllm'\nbase_url = 'https://x?a=1'", "FILE:3: upstreams.a.base_url: the address must not have a query"),
        ("[upstreams.a]\npreset = 'vllm'\nbase_url = 'https://x:99999'", "FILE:3: upstreams.a.base_url: not a valid address"),
        ("[upstreams.a]\npreset = 'vllm'\nbase_url = 'http://box:8000'", "FILE:3: upstreams.a.base_url: http without TLS would show keys"),
        ("[upstreams.a]\npreset = 'vllm'\nheaders = { Host = 'x' }", "FILE:3: upstreams.a.headers.Host: this header cannot be configured"),
        ("[upstreams.a]\npreset = 'vllm'\nheaders = { x-a = \"b\\r\\nc: d\" }", "FILE:3: upstreams.a.headers.x-a: expected a string of printable"),
        ("[upstreams.a]\npreset = 'openai'\nproxy = 'socks5://x'", "FILE:3: upstreams.a.proxy: a socks5 proxy is not supported"),
        ("[upstreams.a]\npreset = 'openai'\nproxy = 'box'", "FILE:3: upstreams.a.proxy: expected http://HOST:PORT"),
        (KIMI + "[[routes]]\nmatch = 'a'\nupstream = 'kimmi'", "FILE:6: routes[0].upstream: there is no upstream 'kimmi' (did you mean kimi?)"),
        (KIMI + "[[routes]]\nmatch = 'a'\nupstream = 'kimi'\nfallbacks = ['x/y']", "FILE:7: routes[0].fallbacks: there is no upstream 'x' (known: kimi)"),
        (KIMI + "[[routes]]\nupstream = 'kimi'", "FILE:4: routes[0]: match is missing"),
        (KIMI + "[default]\nmodel = 'x'", "FILE:4: default: upstream is missing"),
        (KIMI + "[routes]\nmatch = 'x'", "FILE:4: routes: expected a list, got a table"),
        ("[server]\nhost = '0.0.0.0'", "FILE:2: server.host: beyond loopback, plain HTTP"),
        ("[server]\nport == 1", "FILE:2: not valid TOML: "),
        ("[server", "FILE:1: not valid TOML: "),
        ("x = [", "FILE:1: not valid TOML: "),
        ("x = " + "[" * 3000, "FILE"),
        (".".join("a" * 3000) + " = 1", "FILE: not valid TOML: tables are nested too deeply"),
    ],
)  # fmt: skip
def test_a_problem_is_reported_with_its_line_and_a_hint(text: str, message: str) -> None:
    found = problems(text)
    assert len(found) == 1
    assert found[0].startswith(message)


def test_all_problems_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = (
        "[server]\nprt = 1\nhost = '0.0.0.0'\n" + KIMI + "nme = 1\nsettings = { x = 1 }\n[[routes]]\nupstream = 'y'\n"
    )
    setting_lines = [int(re.findall(r"FILE:(\d+)", problem)[0]) for problem in problems(text)]
    assert setting_lines == [2, 3, 7, 8, 9]


def test_a_problem_in_the_environment_names_the_variable() -> None:
    assert problems("", {"DRAGOMAN_SERVER__PORT": "x"}) == [
        "environment DRAGOMAN_SERVER__PORT: server.port: expected a whole number, got a string"
    ]
    assert problems("", server__prt=1)[0].startswith("flag server.prt: server.prt: there is no such key")


def test_the_error_carries_file_line_and_hint() -> None:
    with pytest.raises(ConfigError) as caught:
        loaded("[server]\nprt = 1")
    assert isinstance(caught.value, LocalMisuse)
    [problem] = caught.value.problems
    assert (problem.origin.place, problem.origin.line, problem.hint) == (str(FILE), 2, "did you mean port?")


# --- secrets in clear

CANARY = "sk-canary-0123456789"
SLOTS = [
    f"[server]\nkey = '{CANARY}'",
    f"[upstreams.a]\npreset = 'openai'\nkey = '{CANARY}'",
    f"[upstreams.a]\npreset = 'openai'\nkey = ['env:A', '{CANARY}']",
    f"[upstreams.a]\npreset = 'openai'\nheaders = {{ Authorization = 'Bearer {CANARY}' }}",
    f"[upstreams.a]\npreset = 'openai'\nheaders = {{ x-goog-api-key = '{CANARY}' }}",
    f"[upstreams.a]\npreset = 'openai'\nproxy = 'http://u:{CANARY}@box:1'",
    f"[upstreams.a]\npreset = 'openai'\nbase_url = 'https://u:{CANARY}@box'",
]


@pytest.mark.parametrize("text", SLOTS)
def test_a_literal_secret_is_refused_with_a_hint_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigError, match="a secret must not be written in the configuration") as caught:
        loaded(text)
    assert "reference" in caught.value.hint
    assert CANARY not in str(caught.value) + repr(caught.value.problems)


@pytest.mark.parametrize("text", SLOTS[:-1])
def test_literal_secrets_are_accepted_if_allowed_and_still_never_shown(text: str) -> None:
    found = config("allow_literal_secrets = true\n" + text, {"A": "a", "OPENAI_API_KEY": "o"})
    assert any(CANARY in secret.reveal() for secret in found.secrets())
    assert CANARY not in repr(found) + str(found)


def test_a_mistyped_secret_is_not_shown() -> None:
    assert CANARY not in "".join(problems(f"[upstreams.a]\npreset = 'openai'\nkeys = '{CANARY}'"))
    assert CANARY not in "".join(problems(f"[upstreams.a]\npreset = 'openai'\nkey = {{ x = '{CANARY}' }}"))


# --- upstreams


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_whole_upstream(name: str) -> None:
    found = config(f"[upstreams.x]\npreset = '{name}'", {"AWS_REGION": "eu-central-1"}).upstreams["x"]
    assert found.kind == ("simulator" if name == "simulator" else "http")
    assert bool(found.base_url) == (found.kind == "http")
    assert "{" not in found.base_url


def test_presets_read_raw_tool_calls_where_models_may_write_them() -> None:
    names = {name: config(f"[upstreams.x]\npreset = '{name}'\nregion = 'us-east-1'").upstreams["x"] for name in PRESETS}
    auto = {name for name, upstream in names.items() if upstream.settings.raw_tools == "auto"}
    assert auto == {"moonshot", "vllm", "sglang", "openrouter", "ollama"}
    assert names["openai"].settings.raw_tools == "off"


def test_three_lines_are_a_complete_configuration() -> None:
    found = config(KIMI, {"MOONSHOT_API_KEY": "sk-1"})
    [target] = found.routes.resolve("kimi-k2.5")
    assert (target.upstream.base_url, target.model) == ("https://api.moonshot.ai", "kimi-k2.5")
    assert target.upstream.keys[0].reveal() == "sk-1"


@pytest.mark.parametrize(
    ("dialect", "value", "path"),
    [
        ("openai", "https://x.test", "https://x.test/v1/chat/completions"),
        ("openai", "https://x.test/v1/", "https://x.test/v1/chat/completions"),
        ("openai", "https://x.test/api/v1", "https://x.test/api/v1/chat/completions"),
        ("openai", "https://x.test/api/paas/v4", "https://x.test/api/paas/v4/chat/completions"),
        ("anthropic", "https://x.test/anthropic", "https://x.test/anthropic/v1/messages"),
        ("anthropic", "https://x.test/v1", "https://x.test/v1/messages"),
        ("kiro", "https://x.test", "https://x.test/generateAssistantResponse"),
        ("bedrock", "https://x.test/prefix", "https://x.test/prefix/model/m/converse"),
    ],
)
def test_a_base_url_may_end_with_its_version_or_without(dialect: str, value: str, path: str) -> None:
    from dragoman.dialects.base import ApiRequest

    found = config(f"[upstreams.x]\ndialect = '{dialect}'\nbase_url = '{value}'").upstreams["x"]
    assert found.base_url + found.dialect.binding.wrap(ApiRequest("generate", "m", False, {})).path == path


def test_configured_credentials_replace_those_of_the_preset() -> None:
    base = "[upstreams.x]\npreset = 'kiro'\n"
    assert [login.source for login in config(base).upstreams["x"].logins] == ["auto"]
    keyed = config(base + "key = 'env:KIRO'").upstreams["x"]
    assert (len(keyed.keys), keyed.logins) == (1, ())
    two = config(base + "credentials = ['cli:/a:b', 'store']").upstreams["x"].logins
    assert [(login.source, login.detail) for login in two] == [("cli", "/a:b"), ("store", "")]


def test_a_missing_region_comes_from_the_profile_arn_or_the_environment() -> None:
    arn = "settings = { profile_arn = 'arn:aws:codewhisperer:eu-central-1:123456789012:profile/ABCDEFGHIJKL' }"
    kiro = "[upstreams.x]\npreset = 'kiro'\n"
    assert config(kiro).upstreams["x"].base_url == "https://q.us-east-1.amazonaws.com"
    assert config(kiro + arn).upstreams["x"].base_url == "https://q.eu-central-1.amazonaws.com"
    assert config(kiro + "region = 'us-west-2'\n" + arn).upstreams["x"].region == "us-west-2"
    bedrock = config("[upstreams.x]\npreset = 'bedrock'\n", {"AWS_DEFAULT_REGION": "eu-west-1"}).upstreams["x"]
    assert bedrock.base_url == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    assert [login.source for login in bedrock.logins] == ["aws"]


def test_the_bearer_token_of_bedrock_takes_precedence() -> None:
    environ = {"AWS_REGION": "eu-west-1", "AWS_BEARER_TOKEN_BEDROCK": "t"}
    found = config("[upstreams.x]\npreset = 'bedrock'\n", environ).upstreams["x"]
    assert ([key.shown for key in found.keys], found.logins) == (["env:AWS_BEARER_TOKEN_BEDROCK"], ())


def test_the_file_overrides_proxies_and_certificates_of_the_environment() -> None:
    environ = {"HTTPS_PROXY": "http://u:p@box:1", "NO_PROXY": "api.openai.com", "SSL_CERT_FILE": "/ca.pem"}
    text = "".join(f"[upstreams.{name}]\npreset = '{name}'\n" for name in ("anthropic", "openai", "vllm", "simulator"))
    found = config(
        text + "[upstreams.off]\npreset = 'anthropic'\nproxy = 'off'\nca_file = 'own.pem'", environ
    ).upstreams
    proxy = found["anthropic"].proxy
    assert proxy is not None and proxy.reveal() == "http://u:p@box:1"
    assert [found[name].proxy for name in ("openai", "vllm", "simulator", "off")] == [None] * 4
    assert found["anthropic"].ca_file == Path("/ca.pem")
    assert found["off"].ca_file == FILE.parent / "own.pem"
    assert found["simulator"].ca_file is None


def test_a_key_goes_into_the_header_of_its_dialect() -> None:
    text = "[upstreams.a]\npreset = 'anthropic'\n[upstreams.o]\npreset = 'openai'\n[upstreams.z]\npreset = 'openai'\nkey_header = 'Api-Key'"
    found = config(text).upstreams
    assert [found[name].key_header for name in "aoz"] == ["x-api-key", "authorization", "api-key"]


# --- no configuration


def test_without_configuration_the_simulator_serves_every_model() -> None:
    found = config("")
    assert {upstream.kind for upstream in found.upstreams.values()} == {"simulator"}
    assert found.routes.names()
    for model in (*found.routes.names(), "claude-3-5-haiku-20241022", "gpt-4o", "anything"):
        [target] = found.routes.resolve(model)
        assert target.upstream.kind == "simulator"
    assert found.routes.resolve("claude-sonnet-4.5")[0].upstream.dialect.name == "kiro"


def test_server_settings_without_upstreams_keep_the_simulator() -> None:
    assert "simulator" in config("[server]\nport = 1").upstreams
    assert "simulator" not in config(KIMI).upstreams


# --- files


def test_the_file_is_found_by_argument_variable_and_place(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    place = tmp_path / "xdg" / "dragoman" / "config.toml"
    place.parent.mkdir(parents=True)
    for path, port in ((place, 1), (tmp_path / "variable.toml", 2), (tmp_path / "argument.toml", 3)):
        path.write_text(f"[server]\nport = {port}\n")
    named = {**environ, "DRAGOMAN_CONFIG": str(tmp_path / "variable.toml")}
    assert load_config(None, environ).server.port == 1
    assert load_config(None, named).server.port == 2
    assert load_config(tmp_path / "argument.toml", named).server.port == 3


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    assert load_config(None, {"HOME": str(tmp_path)}).file is None
    with pytest.raises(ConfigError, match="there is no such file"):
        load_config(tmp_path / "none.toml", {"HOME": str(tmp_path)})
    with pytest.raises(ConfigError, match="is a directory"):
        load_config(tmp_path, {"HOME": str(tmp_path)})
    (tmp_path / "latin").write_bytes(b"x = '\xe9'")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "latin", {"HOME": str(tmp_path)})


def test_a_file_that_the_configuration_names_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[upstreams.a]\npreset = 'openai'\nca_file = 'none.pem'\n")
    with pytest.raises(ConfigError, match=r"c\.toml:3: upstreams\.a\.ca_file: there is no file .*none\.pem"):
        load_config(path, {"HOME": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"environment SSL_CERT_FILE: .*there is no file"):
        path.write_text("[upstreams.a]\npreset = 'openai'\n")
        load_config(path, {"HOME": str(tmp_path), "SSL_CERT_FILE": "/none"})


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbf[server]\r\nport = 5\r\n")
    assert load_config(path, {"HOME": str(tmp_path)}).server.port == 5


# --- the page


def blocks() -> list[str]:
    return re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("text", blocks())
def test_the_examples_in_the_documentation_load(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    found = load_with_origins(path, {"HOME": str(tmp_path)}).config
    assert "kimi" in found.upstreams


KEYS: dict[str, type[Struct]] = {  # every table of the file, and the Struct that has its keys
    "": tables._Top,
    "server": tables.Server,
    "server.limits": RequestLimits,
    "log": tables.Log,
    "store": StoreSettings,
    "accounts": AccountSettings,
    "prices": PriceSettings,
    "upstreams.NAME": UpstreamTable,
    "upstreams.NAME.translation": TranslationSettings,
    "upstreams.NAME.limits": UpstreamLimits,
    "upstreams.NAME.timeouts": TimeoutSettings,
    "upstreams.NAME.simulator": SimulatorSettings,
    "models.NAME": tables.ModelTable,
    "routes": tables.RouteTable,
    "default": tables.DefaultTable,
}


def test_the_documentation_shows_every_setting() -> None:
    text = max(blocks(), key=len)
    tree = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))
    for table, shape in KEYS.items():
        shown: set[str] = set()
        for node in _nodes(tree, table.split(".") if table else []):
            shown |= set(node)
        assert {field.name for field in structs.fields(shape)} - shown == set(), table


def _nodes(tree: Any, way: list[str]) -> list[dict[str, Any]]:
    if isinstance(tree, list):
        return [node for item in tree for node in _nodes(item, way)]
    if not way:
        return [tree]
    names = list(tree) if way[0] == "NAME" else [way[0]]
    return [node for name in names if name in tree for node in _nodes(tree[name], way[1:])]


def test_the_documentation_has_every_preset_with_its_address() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    for name, preset in PRESETS.items():
        assert f"`{preset['dialect']}`" in rows[name]
        assert preset.get("base_url", "") in rows[name]
        if "key" in preset:
            assert f"`{preset['key']}`" in rows[name]


# --- nothing else is ever raised

_NAMES = st.sampled_from(
    ["server", "port", "host", "key", "upstreams", "kimi", "preset", "dialect", "settings", "headers", "routes", "match",
     "upstream", "default", "limits", "models", "translation", "proxy", "base_url", "timeouts", "simulator", "x", "0", ""]
)  # fmt: skip
_VALUES = st.recursive(
    st.one_of(
        st.sampled_from(
            ["moonshot", "kiro", "simulator", "openai", "env:A", "env:", "cmd:'", "off", "http://", "https://[", ""]
        ),
        st.text(max_size=5),
        st.integers(),
        st.floats(),
        st.booleans(),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)
_TREES = st.dictionaries(_NAMES, _VALUES, max_size=5)
_VARIABLES = st.lists(_NAMES, min_size=1, max_size=4).map(lambda parts: "DRAGOMAN_" + "__".join(parts).upper())


@given(
    _TREES, st.dictionaries(_VARIABLES, st.text(max_size=8), max_size=4), st.dictionaries(_NAMES, _VALUES, max_size=2)
)
def test_any_input_is_a_configuration_or_a_configuration_error(
    tree: dict[str, Any], environ: dict[str, str], flags: dict[str, Any]
) -> None:
    from dragoman.gateway.show import setting_lines, toml_value

    text = "\n".join(f"{toml_value(name)} = {toml_value(value)}" for name, value in tree.items())
    try:
        found = build_config(text, FILE, environ, flags)
    except ConfigError as error:
        assert str(error)
    else:
        assert found.config.upstreams or not found.config.routes.names()
        assert all(toml_value(line.value) for line in setting_lines(found.leaves))
