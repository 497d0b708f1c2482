"""Routes from models to upstreams, positions of keys in TOML files, and `dragoman config`."""

from __future__ import annotations

import json
import tomllib
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cli import config as command
from dragoman.errors import MalformedRequest, UnknownModel
from dragoman.gateway.config import Config, build_config
from dragoman.gateway.layers import DEFAULT, flatten_tree, from_environment, merge_layers, nest_leaves
from dragoman.http.addresses import is_loopback, proxy_variable
from dragoman.wire.toml_lines import KeyPath, line_numbers
from tests.growth import check_linear_growth

SET_UP = """
[upstreams.kimi]
preset = "moonshot"
[upstreams.kiro]
preset = "kiro"
[upstreams.claude]
preset = "anthropic"
models = ["claude-*", "claude-opus-4-1"]
[upstreams.router]
preset = "openrouter"
[[routes]]
match = "claude-*-haiku*"
upstream = "kimi"
model = "kimi-small"
[[routes]]
match = ["gpt-?", "claude-3-haiku-exact", "big[1m]"]
upstream = "kiro"
fallbacks = ["kimi/kimi-k2", "claude", "kiro"]
"""
DEFAULT_ROUTE = '[default]\nupstream = "kimi"\nmodel = "kimi-k2"\nfallbacks = "router/moonshotai/kimi-k2"\n'


def config(text: str) -> Config:
    return build_config(text, Path("/c/config.toml"), {"HOME": "/h"}, {}).config


def targets(model: str, text: str = SET_UP) -> list[str]:
    return [f"{target.upstream.name}:{target.model}" for target in config(text).routes.resolve(model)]


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("claude-3-haiku-exact", ["kiro:claude-3-haiku-exact", "kimi:kimi-k2", "claude:claude-3-haiku-exact"]),
        ("claude-3-5-haiku-2024", ["kimi:kimi-small"]),
        ("gpt-5", ["kiro:gpt-5", "kimi:kimi-k2", "claude:gpt-5"]),
        ("big[1m]", ["kiro:big[1m]", "kimi:kimi-k2", "claude:big[1m]"]),
        ("claude-sonnet-5[1m]", ["kiro:claude-sonnet-5"]),  # no service knows the ending
        ("kimi-k2.5", ["kimi:kimi-k2.5"]),
        ("claude/anything/else", ["claude:anything/else"]),
        ("claude-opus-4-1", ["claude:claude-opus-4-1"]),  # listed by name goes before a pattern higher in the file
        ("claude-sonnet-5", ["kiro:claude-sonnet-5"]),  # the first in the file with a pattern that fits
        ("moonshotai/kimi-k2", ["router:moonshotai/kimi-k2"]),
    ],
)
def test_a_model_finds_its_targets(model: str, found: list[str]) -> None:
    assert targets(model) == found


def test_the_default_gets_models_without_a_route() -> None:
    assert targets("unheard-of", SET_UP + DEFAULT_ROUTE) == ["kimi:kimi-k2", "router:moonshotai/kimi-k2"]
    assert targets("gpt-5", SET_UP + DEFAULT_ROUTE)[0] == "kiro:gpt-5"


@pytest.mark.parametrize("model", ["gpt-55", "big1", "/", "kimi/", "Kimi-K2"])
def test_without_a_default_an_unknown_name_is_a_404(model: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        config(SET_UP.replace('"openrouter"', '"vllm"')).routes.resolve(model)
    assert caught.value.fault.status == 404


def test_a_request_without_a_model_is_a_400() -> None:
    with pytest.raises(MalformedRequest, match="names no model") as caught:
        config(SET_UP).routes.resolve("")
    assert (caught.value.fault.status, caught.value.fault.at) == (400, "model")


def test_an_unknown_model_is_reported_with_similar_names() -> None:
    with pytest.raises(UnknownModel, match="similar names: claude-3-haiku-exact"):
        config(SET_UP).routes.resolve("cloude-3-haiku-exact")
    with pytest.raises(UnknownModel, match="known models: claude-3-haiku-exact"):
        config(SET_UP).routes.resolve("zzzz")


def test_a_single_upstream_without_a_model_list_gets_every_model() -> None:
    lone = '[upstreams.box]\npreset = "vllm"\n'
    assert targets("whatever/it-is", lone) == ["box:whatever/it-is"]
    with pytest.raises(UnknownModel):
        targets("whatever", lone + '[upstreams.other]\npreset = "sglang"\n')


def test_a_client_cannot_make_routing_slow_nor_an_error_long() -> None:
    text = SET_UP + '[[routes]]\nmatch = "*a*a*a*a*a*a*a*a*b"\nupstream = "kimi"\n'
    loaded = config(text)

    def work(size: int) -> Callable[[], object]:
        return lambda: refused(loaded, "a" * size)

    check_linear_growth(work, 2_500)
    assert len(refused(loaded, "a" * 20_000)) < 600


def refused(loaded: Config, name: str) -> str:
    with pytest.raises(UnknownModel) as caught:
        loaded.routes.resolve(name)
    return str(caught.value)


def test_known_names_are_listed_once() -> None:
    assert config(SET_UP).routes.names() == ["claude-3-haiku-exact", "big[1m]", "auto", "claude-opus-4-1"]


@pytest.mark.parametrize(
    ("address", "environ", "found"),
    [
        ("https://a.test", {}, None),
        ("https://a.test", {"HTTPS_PROXY": "x"}, "HTTPS_PROXY"),
        ("https://a.test", {"https_proxy": "y", "HTTPS_PROXY": "x"}, "https_proxy"),
        ("https://a.test", {"HTTP_PROXY": "x"}, None),
        ("http://a.test", {"http_proxy": "x"}, "http_proxy"),
        ("http://a.test", {"HTTP_PROXY": "x"}, "HTTP_PROXY"),
        ("http://a.test", {"HTTP_PROXY": "x", "REQUEST_METHOD": "GET"}, None),
        ("https://a.test", {"ALL_PROXY": "x"}, "ALL_PROXY"),
        ("https://localhost:1", {"ALL_PROXY": "x"}, None),
        ("https://[::1]:1", {"ALL_PROXY": "x"}, None),
        ("https://a.test", {"ALL_PROXY": "x", "NO_PROXY": "*"}, None),
        ("https://a.test", {"ALL_PROXY": "x", "NO_PROXY": "b.test, .test"}, None),
        ("https://a.test", {"ALL_PROXY": "x", "no_proxy": "a.test:443"}, None),
        ("https://a.test", {"ALL_PROXY": "x", "no_proxy": "a.test:80"}, "ALL_PROXY"),
        ("https://ba.test", {"ALL_PROXY": "x", "no_proxy": "a.test"}, "ALL_PROXY"),
        ("https://10.1.2.3", {"ALL_PROXY": "x", "no_proxy": "10.0.0.0/8"}, None),
        ("https://11.1.2.3", {"ALL_PROXY": "x", "no_proxy": "10.0.0.0/8"}, "ALL_PROXY"),
    ],
)
def test_the_environments_proxy(address: str, environ: dict[str, str], found: str | None) -> None:
    assert proxy_variable(address, environ) == found


def test_every_notation_of_loopback_is_recognized() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST.", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "", "10.0.0.1", "localhost.evil.test", "1270.0.1")))


# --- Every key of a TOML text is found, on its line

HARD = '''# a comment = 1
plain = 1 # x = 2
"quoted = key" = "a # b = ] }"
'literal' = 'c:\\' # trailing
a.b . "c.d" = [ # why = not
  1, # two
  "x]", { inline = { deep = 'y' }, other = [ 2 ] },
  [ [], {} ],
]
text = """
fake = 1
[fake]
\\"""  quotes "" inside""""
raw = \'\'\'
[[fake]]
it''s\'\'\'
empty = ""
six = """"""
when = 1979-05-27T07:32:00Z
[table]
key = -1e5
[ table . "sub table" ]
x = true
[[items]]
n = 1
[items.inner]
m = 1
[[items]]
[[items.more]]
k = 1
[[items.more]]
k = 2
[items.inner]
m = 3
'''


def keys_of(tree: Any, at: KeyPath = ()) -> set[KeyPath]:
    found: set[KeyPath] = set()
    if isinstance(tree, dict):
        inner: list[tuple[str | int, Any]] = list(tree.items())
    else:
        inner = list(enumerate(tree)) if isinstance(tree, list) else []
    for name, value in inner:
        found |= {(*at, name)} | keys_of(value, (*at, name))
    return found


@pytest.mark.parametrize("text", [HARD, HARD.replace("\n", "\r\n")], ids=["lf", "crlf"])
def test_every_key_of_a_difficult_text_is_found(text: str) -> None:
    assert set(line_numbers(text)) == keys_of(tomllib.loads(text))


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("plain",), 2),
        (("quoted = key",), 3),
        (("a", "b", "c.d"), 5),
        (("a", "b", "c.d", 2, "inline", "deep"), 7),
        (("a", "b", "c.d", 3), 8),
        (("raw",), 14),
        (("table",), 20),
        (("table", "sub table", "x"), 23),
        (("items", 0), 24),
        (("items", 0, "inner", "m"), 27),
        (("items", 1), 28),
        (("items", 1, "more", 1, "k"), 32),
        (("items", 1, "inner", "m"), 34),
    ],
)
def test_a_key_is_on_its_line(key: KeyPath, line: int) -> None:
    assert line_numbers(HARD)[key] == line


def test_the_projects_own_files_are_read() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert set(line_numbers(text)) == keys_of(tomllib.loads(text))


_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6)
_TREES = st.dictionaries(
    _WORDS,
    st.recursive(
        _WORDS | st.integers(-9, 9) | st.booleans(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
        max_leaves=10,
    ),
    max_size=4,
)


@given(_TREES)
def test_every_key_of_any_tree_is_found(tree: dict[str, Any]) -> None:
    from dragoman.gateway.show import toml_value

    text = "\n".join(
        f"# {number}\n{toml_value(name)} = {toml_value(value)}" for number, (name, value) in enumerate(tree.items())
    )
    assert tomllib.loads(text) == tree
    found = line_numbers(text)
    assert set(found) == keys_of(tree)
    assert [found[name,] for name in tree] == [2 * number + 2 for number in range(len(tree))]


@given(st.text(st.sampled_from("[]{}=.,#\"'\n a1\\"), max_size=40))
def test_no_text_raises_an_exception(text: str) -> None:
    line_numbers(text)


# --- `dragoman config check | show | path`

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


def test_check_reports_problems_and_exits_with_3(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(KIMI + "basee_url = 'x'\nx = 1\n")
    assert run("check") == 3
    out, error = capsys.readouterr()
    assert out == ""
    assert f"{file}:4: upstreams.kimi.basee_url: there is no such key (did you mean base_url?)" in error
    assert f"{file}:5: " in error
    assert run("check", "--json") == 3
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert [problem["line"] for problem in report["problems"]] == [4, 5]


def test_check_of_a_valid_file_warns_of_unset_variables(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f'{KIMI}[upstreams.box]\npreset = "vllm"\n')
    assert run("check") == 0
    warning = "warning: Upstream 'kimi' has no key: environment variable NO_SUCH_KEY is not set. Set it, or change"
    assert f"{warning} [upstreams.kimi] key.\n" in capsys.readouterr().err
    assert run("check", "--json") == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_check_of_a_file_without_a_usable_upstream_exits_with_5(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(KIMI)
    assert run("check") == 5
    assert "is valid" in (error := capsys.readouterr().err) and "no upstream can be used" in error


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("env:NO_SUCH_KEY", "environment variable NO_SUCH_KEY is not set"),
        ("file:nothing-here", "no such file"),
        ("file:open-to-all", "other users can read the file"),
        ("cmd:false", "ended with status 1"),
    ],
)
def test_check_names_every_kind_of_missing_secret_and_its_setting(
    key: str, why: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file.parent / "open-to-all").write_text("sk-1")
    (file.parent / "open-to-all").chmod(0o644)
    text = f'[upstreams.box]\npreset = "vllm"\nkey = "{key}"\n[upstreams.box.headers]\nx-team-token = "{key}"\n'
    file.write_text(f'{text}[upstreams.free]\npreset = "sglang"\n')
    assert run("check", "--json") == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert [why in each for each in warnings] == [True, True]
    assert "change [upstreams.box] key." in warnings[0]
    assert "change [upstreams.box.headers] x-team-token." in warnings[1]


@pytest.mark.parametrize("key", ["short", "changeme-0123456789", "env:NO_SUCH_KEY"])
def test_check_refuses_a_server_key_that_serve_refuses(
    key: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(f'allow_literal_secrets = true\n[server]\nkey = "{key}"\n[upstreams.box]\npreset = "vllm"\n')
    assert run("check") == 3
    assert "server.key" in capsys.readouterr().err
    assert not (file.parent.parent / ".local").exists()  # no key was created


def test_check_without_a_file_succeeds(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert rows['upstreams.kimi.default_model = "kimi-k2.5"'] == "preset moonshot"
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


def test_show_of_a_broken_file_exits_with_3(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("[server")
    assert run("show") == 3
    assert "dragoman: the configuration is not valid." in capsys.readouterr().err


# --- Layers: what is merged, what is replaced

_NAMES = st.sampled_from("abc")
_SETTINGS = st.dictionaries(
    _NAMES,
    st.recursive(
        st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2),
        lambda inner: st.dictionaries(_NAMES, inner, max_size=3) | st.lists(st.dictionaries(_NAMES, inner, max_size=2)),
        max_leaves=8,
    ),
    max_size=3,
)


def merged(low: Any, high: Any) -> Any:
    """Return the expected result: tables are merged, every other value is replaced."""
    if not isinstance(low, dict) or not isinstance(high, dict):
        return high
    return {**low, **{name: merged(low[name], value) if name in low else value for name, value in high.items()}}


def _flat(tree: dict[str, Any]) -> Any:
    return flatten_tree(tree, DEFAULT)


@given(_SETTINGS)
def test_a_flat_tree_becomes_the_tree_again(tree: dict[str, Any]) -> None:
    assert nest_leaves(_flat(tree)) == tree


@given(_SETTINGS, _SETTINGS)
def test_tables_are_merged_and_other_values_are_replaced(low: dict[str, Any], high: dict[str, Any]) -> None:
    assert nest_leaves(merge_layers(_flat(low), _flat(high))) == merged(low, high)


@given(_SETTINGS, _SETTINGS, _SETTINGS)
def test_merging_layers_is_associative(a: Any, b: Any, c: Any) -> None:
    one, two, three = map(_flat, (a, b, c))
    assert nest_leaves(merge_layers(one, two, three)) == merged(merged(a, b), c)


def test_variables_match_names_with_hyphens_dots_and_capitals() -> None:
    below = _flat({"upstreams": {"My-Box.1": {"key": "x"}}})
    found, _ = from_environment({"DRAGOMAN_UPSTREAMS__MY_BOX_1__KEY": "y"}, below, ["upstreams"])
    assert list(found) == [("upstreams", "My-Box.1", "key")]


def test_two_contradicting_variables_do_not_crash() -> None:
    found, _ = from_environment({"DRAGOMAN_SERVER": "x", "DRAGOMAN_SERVER__PORT": "1"}, {}, ["server"])
    assert nest_leaves(found) == {"server": {"port": "1"}}
