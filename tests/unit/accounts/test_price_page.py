"""docs/prices.md: its examples are valid, and it has every key of a price file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dragoman.accounts import prices_file
from dragoman.accounts.prices_file import PriceFileError, parse_price_file

PAGE = (Path(__file__).parents[3] / "docs" / "prices.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0]


def test_the_example_is_valid() -> None:
    content = parse_price_file(EXAMPLE, "page")
    assert len(content.prices) == 3 and content.default is not None and "our-cloud" in content.addresses


def test_the_table_has_every_key() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == set(prices_file._ROW_KEYS)


def test_the_message_is_what_is_printed() -> None:
    text = '[[prices]]\nprovider = "p"\nmodels = "m"\ninput = 1\noutput = 1\n\n\n\ncache_red = 1\n'
    with pytest.raises(PriceFileError) as caught:
        parse_price_file(text, "prices.toml")
    assert f"```\n{caught.value}\n```" in PAGE
