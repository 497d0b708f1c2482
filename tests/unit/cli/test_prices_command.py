"""`dragoman prices`: list, import and check."""

from __future__ import annotations

import io
import json
import os
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from dragoman.accounts.prices_file import load_price_book, read_price_file
from dragoman.cli import main
from dragoman.gateway.config import load_config

Run: TypeAlias = Callable[..., tuple[int, str, str]]

LIST = {
    "gpt-x": {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 1.25e-06,
        "output_cost_per_token": 1e-05,
        "input_cost_per_token_above_272k_tokens": 2.5e-06,
        "output_cost_per_token_above_272k_tokens": 1.5e-05,
    },
    "acme/a": {"litellm_provider": "acme", "mode": "chat", "input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6},
}
CONFIG = """
[upstreams.box]
dialect = "openai"
base_url = "http://127.0.0.1:9/v1"
models = ["llama", "gpt-*"]
[upstreams.claude]
preset = "anthropic"
key = "env:X"
"""


@pytest.fixture(name="run")
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command in an empty home folder and returns its status and output."""
    for name in [name for name in os.environ if name.startswith(("DRAGOMAN_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> tuple[int, str, str]:
        status = main(["prices", *words])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def own_file(home: Path) -> Path:
    return home / ".config" / "dragoman" / "prices.toml"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_list_shows_prices_tiers_and_what_is_assumed(run: Run) -> None:
    status, out, err = run()
    assert status == 0 and "dollars per million tokens; version " in err
    lines = out.splitlines()
    assert lines[0].split() == ["PROVIDER", "MODEL", "INPUT", "OUTPUT", "CACHE", "READ", "CACHE", "WRITE", "FROM"]
    sonnet = next(number for number, line in enumerate(lines) if "claude-sonnet-4-5," in line)
    assert lines[sonnet].split()[-6:-3] == ["15", "0.3", "3.75"] and lines[sonnet].endswith("shipped, seen 2026-11-18")
    assert lines[sonnet + 1].split() == ["over", "200,000", "tokens", "6", "22.5", "0.6", "7.5"]
    assert run("list") == (status, out, err)
    assert "plan" in run("--provider", "kiro")[1]


def test_list_of_some_models(run: Run) -> None:
    _, out, _ = run("--model", "gpt-5-mini*")
    assert [line.split()[0] for line in out.splitlines()] == ["PROVIDER", "openai"]
    _, out, _ = run("--model", "claude-haiku-4-5-20251001", "--provider", "anthropic")  # a name that a pattern has
    assert "claude-haiku-4-5," in out and len(out.splitlines()) == 2
    status, out, err = run("--model", "no-such-model")
    assert (status, out) == (1, "") and "no price matches" in err


def test_list_as_json(run: Run) -> None:
    status, out, _ = run("--model", "gpt-5.4", "--json")
    document = json.loads(out)
    assert status == 0 and document["version"] == load_price_book([]).version
    (price,) = document["prices"]
    assert price["rates"]["input"] == "2.5"
    assert price["over"][0]["tokens"] == 272_000 and price["over"][0]["rates"]["output"] == "22.5"
    assert price["assumed"] == ["cache_write"] and price["source"].startswith("https://")
    assert (price["provider"], price["origin"], price["seen"]) == ("openai", "shipped", "2026-11-18")
    assert not [value for value in walk(document) if isinstance(value, float)]


def walk(value: Any) -> list[Any]:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value, *(each for item in inner for each in walk(item))]


def test_the_users_file_comes_first_and_its_mistakes_are_named(run: Run, tmp_path: Path) -> None:
    row = '[[prices]]\nupstream = "box"\nmodels = "llama"\ninput = "0"\noutput = "0"\n'
    path = write(own_file(tmp_path), row)
    assert "upstream box" in run()[1].splitlines()[1]
    path.write_text(row + "imput = 1\n")
    status, out, err = run()
    assert (status, out) == (3, "")
    assert f"{path}:6: prices[0].imput: there is no such key (did you mean input?)" in err


def test_configured_files_replace_the_usual_one(run: Run, tmp_path: Path) -> None:
    write(own_file(tmp_path), "never read")
    for name, rate in (("one", 1), ("two", 2)):
        write(tmp_path / f"{name}.toml", f'[[prices]]\nprovider = "openai"\nmodels = "m"\ninput = {rate}\noutput = 9')
    config = write(tmp_path / "c.toml", '[prices]\nfile = ["one.toml", "two.toml"]\n' + CONFIG)
    assert load_config(config, {"HOME": str(tmp_path)}).prices.file == (tmp_path / "one.toml", tmp_path / "two.toml")
    _, out, _ = run("--config", str(config), "--model", "m", "--json")
    assert [price["rates"]["input"] for price in json.loads(out)["prices"][:2]] == ["1", "2"]
    config.write_text('[prices]\nfile = "missing.toml"\n' + CONFIG)
    status, _, err = run("--config", str(config))
    assert status == 3 and f"c.toml:2: prices.file: there is no file {tmp_path / 'missing.toml'}" in err
    config.write_text(CONFIG)
    write(tmp_path / "prices.toml", '[[prices]]\nprovider = "p"\nmodels = "beside"\ninput = 1\noutput = 1')
    assert "beside" in run("--config", str(config))[1]  # comes before the one in the usual folder


def test_import_writes_the_users_file(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path / "list.json", json.dumps(LIST))
    os.utime(source, (0, datetime(2026, 3, 1, tzinfo=UTC).timestamp()))
    status, out, err = run("import", str(source))
    assert (status, out) == (0, "")
    assert "left out 1: a provider that Dragoman does not know" in err
    assert f"wrote {own_file(tmp_path)}: 1 model in 1 price, of LiteLLM" in err
    (price,) = read_price_file(own_file(tmp_path)).prices
    assert (price.models, price.provider, str(price.seen)) == (("gpt-x",), "openai", "2026-03-01")
    assert [tier.above_tokens for tier in price.tiers] == [272_000]
    assert not list(own_file(tmp_path).parent.glob(".*"))  # no temporary file is left
    assert "gpt-x" in run()[1]


def test_import_does_not_replace_a_file_unasked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "list.json", json.dumps(LIST))
    mine = write(own_file(tmp_path), "# mine\n")
    status, _, err = run("import", str(source))
    assert status == 1 and "exists and was not changed. Add --force to replace it" in err
    assert mine.read_text() == "# mine\n"

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("\n"))
    assert run("import", str(source))[0] == 1
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert run("import", str(source))[0] == 0
    assert "gpt-x" in mine.read_text()
    mine.write_text("# mine\n")
    assert run("import", str(source), "--force")[0] == 0
    assert "gpt-x" in mine.read_text()


def test_import_of_other_providers_to_another_file(run: Run, tmp_path: Path) -> None:
    source, other = write(tmp_path / "list.json", json.dumps(LIST)), tmp_path / "new" / "other.toml"
    assert run("import", str(source), "--all", "--output", str(other))[0] == 0
    assert {price["provider"] for price in tomllib.loads(other.read_text())["prices"]} == {"openai", "acme"}
    assert run("import", str(source), "--provider", "acme", "--output", str(other), "--force")[0] == 0
    assert [price["provider"] for price in tomllib.loads(other.read_text())["prices"]] == ["acme"]
    assert not own_file(tmp_path).exists()


def test_import_that_finds_nothing_writes_nothing(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path / "list.json", json.dumps({"acme/a": LIST["acme/a"]}))
    status, _, err = run("import", str(source))
    assert status == 1 and "no price was found, so nothing was written" in err
    source.write_text("nonsense")
    assert "list.json: not JSON" in run("import", str(source))[2]
    assert "No such file" in run("import", str(tmp_path / "absent.json"))[2]
    assert not own_file(tmp_path).exists()


def test_wrong_usage(run: Run) -> None:
    assert run("import")[0] == run("list", "x")[0] == run("check", "x")[0] == run("remove")[0] == 2


def test_check_finds_models_without_a_price(run: Run, tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", CONFIG)
    status, out, err = run("check", "--config", str(config))
    assert (status, out) == (3, "")
    assert "error: box: llama: its price is unknown, so its requests have no cost" in err
    assert "2 of 3 configured models have a price" in err
    write(own_file(tmp_path), '[[prices]]\nupstream = "box"\nmodels = "llama"\ninput = "0"\noutput = "0"\n')
    status, _, err = run("check", "--config", str(config))
    assert status == 0 and "3 of 3 configured models have a price" in err
    assert "warning: box: llama: no rate for cache read and cache write: the input rate is used" in err


def test_check_finds_old_retired_and_tiny_prices(run: Run, tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", CONFIG)
    row = '[[prices]]\nupstream = "box"\nmodels = "llama"\ninput = "0.000003"\noutput = "0.000015"\n'
    write(own_file(tmp_path), row + "seen = 2020-01-01\ndeprecation_date = 2021-01-01\n")
    status, out, _ = run("check", "--config", str(config), "--json")
    document = json.loads(out)
    assert (status, document["models"], document["unknown"]) == (0, 3, 0)
    assert [problem["kind"] for problem in document["problems"]] == ["deprecated", "old", "assumed", "tiny"]
    assert "is that a price per token?" in document["problems"][-1]["message"]


def test_check_uses_the_address_of_an_upstream(run: Run, tmp_path: Path) -> None:
    text = '[upstreams.ds]\ndialect = "openai"\nbase_url = "https://api.deepseek.com/v1"\nmodels = "deepseek-flash"'
    status, _, err = run("check", "--config", str(write(tmp_path / "c.toml", text)))
    assert status == 0 and "1 of 1 configured models have a price" in err
