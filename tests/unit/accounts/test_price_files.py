"""Price files: what is read, and how mistakes are reported."""

from __future__ import annotations

import os
import sys
from datetime import date
from pathlib import Path

import pytest

from dragoman.accounts.prices import Rates, Tier
from dragoman.accounts.prices_file import (
    PriceFileError,
    load_price_book,
    parse_price_file,
    parse_rate,
    read_price_file,
)

ROW = """
[[prices]]
provider = "openai"
models = ["gpt-5"]
input = "1.25"
output = 10
"""


def problems(text: str) -> list[str]:
    with pytest.raises(PriceFileError) as caught:
        parse_price_file(text, "my.toml")
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


def test_a_row_with_everything() -> None:
    row = """
[providers.box]
addresses = "gpu-box/*"
[default]
input = "5"
output = "20"
[[prices]]
upstream = "my-box"
models = ["llama-*", "qwen3"]
plan = true
input = "0.30"
output = 1.5
cache_read = "0.03"
cache_write = "0.375"
cache_write_1h = "0.6"
reasoning = "2"
over = [
    { tokens = 200_000, input = "0.6", output = "3", cache_read = "0.06" },
    { tokens = 1_000_000, input = "1.2", output = "6", reasoning = "7" },
]
valid_from = 2026-01-01
deprecation_date = 2027-01-01
seen = 2026-11-18
source = "https://example.com"
note = "a note"
"""
    content = parse_price_file(row, "my.toml")
    (price,) = content.prices
    assert (price.upstream, price.provider, price.models) == ("my-box", "", ("llama-*", "qwen3"))
    assert price.rates == Rates(300_000, 1_500_000, 30_000, 375_000, 600_000, 2_000_000)
    assert price.tiers == (
        Tier(1_000_000, Rates(1_200_000, 6_000_000, 30_000, 375_000, 600_000, 7_000_000)),
        Tier(200_000, Rates(600_000, 3_000_000, 60_000, 375_000, 600_000, 2_000_000)),
    )
    assert (price.plan, price.assumed, price.note, price.source) == (True, (), "a note", "https://example.com")
    assert (price.valid_from, price.deprecation_date) == (date(2026, 1, 1), date(2027, 1, 1))
    assert (price.seen, price.origin) == (date(2026, 11, 18), "my.toml")
    assert content.addresses == {"box": ("gpu-box/*",)}
    assert content.default is not None and content.default.rates is not None
    assert content.default.rates.output == 20_000_000


def test_rates_that_are_missing() -> None:
    (price,) = parse_price_file(ROW, "f").prices
    assert price.rates == Rates(1_250_000, 10_000_000, 1_250_000, 1_250_000, 1_250_000, 10_000_000)
    assert price.assumed == ("cache_read", "cache_write")
    (cached,) = parse_price_file(
        ROW + 'cache_write = "2"\nover = [{ tokens = 9, input = "4", output = "5" }]', "f"
    ).prices
    assert cached.assumed == ("cache_read",)
    assert cached.rates is not None and cached.rates.cache_write_1h == 2_000_000
    assert cached.tiers[0].rates == Rates(4_000_000, 5_000_000, 4_000_000, 2_000_000, 2_000_000, 5_000_000)


def test_a_plan_needs_no_rates() -> None:
    (price,) = parse_price_file('[[prices]]\nprovider = "kiro"\nmodels = "*"\nplan = true', "f").prices
    assert (price.rates, price.plan, price.assumed, price.models) == (None, True, (), ("*",))


@pytest.mark.parametrize(
    ("value", "pico"),
    [("3", 3_000_000), ("0.30", 300_000), (3, 3_000_000), ("0.000001", 1), ("0", 0), ("0.1000000", 100_000), ("999999.999999", 10**12 - 1)],
)  # fmt: skip
def test_rates_are_exact(value: object, pico: int) -> None:
    assert parse_rate(value) == pico


@pytest.mark.parametrize(
    "value",
    ["0.0000001", "-1", -1, "1e-6", "3,5", "", "$3", " 3", "3 ", "inf", "nan", "1000000", "1.", ".5", "0x10", "٣", True, None, 0.3, [1]],
)  # fmt: skip
def test_what_is_no_rate(value: object) -> None:
    with pytest.raises(ValueError, match=r"price|negative"):
        parse_rate(value)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("cache_red = 1", "my.toml:7: prices[0].cache_red: there is no such key (did you mean cache_read?)"),
        ("colour = 1", "my.toml:7: prices[0].colour: there is no such key (known here: provider, upstream,"),
        ("cache_read = -1", "my.toml:7: prices[0].cache_read: a price is not negative, got -1"),
        ("cache_read = -0.5", "my.toml:7: prices[0].cache_read: a price is not negative, got -0.5"),
        ("cache_read = 1e-7", "my.toml:7: prices[0].cache_read: '1e-7' is not a price (write dollars per million"),
        ("cache_read = 0.1234567", "my.toml:7: prices[0].cache_read: '0.1234567' is not a price"),
        ("cache_read = nan", "my.toml:7: prices[0].cache_read: 'nan' is not a price"),
        ("cache_read = []", "my.toml:7: prices[0].cache_read: expected a price, got []"),
        ('plan = "yes"', "my.toml:7: prices[0].plan: expected true or false, got 'yes'"),
        ("source = 1.5", "my.toml:7: prices[0].source: expected a string in quotes, got '1.5'"),
        ('seen = "2026-11-18"', "my.toml:7: prices[0].seen: expected a date without quotes, as in 2026-11-18"),
        ("seen = 2026-11-18T10:00:00", "my.toml:7: prices[0].seen: expected a date without quotes"),
        ('upstream = "x"', "my.toml:2: prices[0]: set provider, or upstream for the price of one upstream"),
        ("over = 1", "my.toml:7: prices[0].over: expected a list of tables"),
        ("over = [1]", "my.toml:7: prices[0].over[0]: expected a table"),
        ("over = [{ input = 1, output = 1 }]", "my.toml:7: prices[0].over[0]: set tokens to a whole number"),
        ("over = [{ tokens = 9, input = 1 }]", "my.toml:7: prices[0].over[0]: a price of longer requests needs input"),
        ('over = [{ tokens = 9, input = "x", output = 1 }]', "my.toml:7: prices[0].over[0].input: 'x' is not a price"),
    ],
)
def test_a_mistake_names_file_line_and_key(line: str, problem: str) -> None:
    found = problems(ROW + line)
    assert len(found) == 1 or line == 'upstream = "x"'
    assert found[0].startswith(problem)


def test_tiers_are_there_once() -> None:
    tier = "{ tokens = 9, input = 1, output = 1 }"
    assert problems(ROW + f"over = [{tier}, {tier}]") == ["my.toml:7: prices[0].over[1]: tokens = 9 occurs twice"]


def test_all_mistakes_are_reported_in_the_order_of_the_file() -> None:
    text = ROW + "reasoning = true\n[[prices]]\nmodels = []\nprovider = 3\n[price]\n[providers.x]\n[default]\ninput = 1"
    assert [problem.split(": ", 1)[0] for problem in problems(text)] == [
        "my.toml:7",
        "my.toml:8",  # input and output are missing
        "my.toml:9",
        "my.toml:10",
        "my.toml:11",
        "my.toml:12",
        "my.toml:13",
    ]


def test_a_file_that_is_no_toml_or_no_text(tmp_path: Path) -> None:
    assert problems("[[prices]")[0].startswith("my.toml: not valid TOML: ")
    assert "line 1" in problems("[[prices]")[0]
    path = tmp_path / "p.toml"
    with pytest.raises(PriceFileError, match="no such file"):
        read_price_file(path)
    path.write_bytes(b"\xff")
    with pytest.raises(PriceFileError, match="it is not UTF-8 text"):
        read_price_file(path)
    path.write_bytes(b"\xef\xbb\xbf" + ROW.encode())
    assert len(read_price_file(path).prices) == 1


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.touch(mode=0)
    with pytest.raises(PriceFileError, match="permission denied"):
        read_price_file(path)


def test_files_of_the_user_come_before_the_shipped_one(tmp_path: Path) -> None:
    mine, imported = tmp_path / "mine.toml", tmp_path / "imported.toml"
    mine.write_text(ROW.replace("1.25", "7"))
    imported.write_text(
        ROW.replace("1.25", "8") + ROW.replace("gpt-5", "gpt-x") + "[default]\ninput = 1\noutput = 1\n"
        '[providers.mine]\naddresses = ["gateway.example/*"]\n[providers.openai]\naddresses = ["eu.api.openai.com/*"]'
    )
    book = load_price_book([mine, imported])
    found = book.find("openai", "up", "gpt-5", 2e9)
    assert found is not None and found.rates is not None
    assert (found.rates.input, found.origin) == (7_000_000, str(mine))
    assert [len(layer) for layer in book.layers[:2]] == [1, 2]
    assert [price.origin for price in book.layers[2][:1]] == ["shipped"]
    assert book.default is not None
    for address, provider in (
        ("gateway.example", "mine"),
        ("eu.api.openai.com", "openai"),
        ("api.openai.com", "openai"),
    ):
        assert book.provider_of(f"https://{address}/v1", "", "dialect") == provider
    assert book.version != load_price_book([]).version
