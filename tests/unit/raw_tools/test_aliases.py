"""The parser names of the inference engines choose the tables that read what the parsers read."""

from __future__ import annotations

import pytest

from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools.tables import ALIASES, NAMES, TABLES, tables_of
from tests.unit.raw_tools import formats_more
from tests.unit.raw_tools.formats import FORMATS

# Names in vLLM's, SGLang's and Dynamo's registries. Not read: granite-20b-fc, internlm, xlam, gigachat3, inkling and
# other formats that have no table.
VLLM = """
apertus cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 dots ernie45
functiongemma gemma4 glm45 glm47 granite granite4 hermes hunyuan_a13b hy_v3 jamba kimi_k2 kimi_k3 lfm2 llama3_json
llama4_json llama4_pythonic longcat mimo minicpm5 minimax_m2 mistral olmo3 openai phi4_mini_json poolside_v1 pythonic
qwen3_coder qwen3_xml seed_oss step3 step3p5
"""
SGLANG = """
apertus2509 cohere_command4 deepseekv3 deepseekv31 deepseekv32 deepseekv4 deepseekv41 dots gemma4 glm glm45 glm47 gpt-oss
hermes hunyuan kimi_k2 kimi_k3 lfm2 llama3 mimo minicpm5 minimax-m2 mistral poolside_v1 pythonic qwen qwen25 qwen3_coder
step3 step3p5
"""
DYNAMO = """
deepseek-v4 deepseek_v3 deepseek_v3_1 deepseek_v3_2 deepseek_v4 deepseekv4 gemma-4 gemma4 glm47 harmony hermes jamba
kimi_k2 llama3_json minimax_m2 mistral nemotron_deci nemotron_nano phi4 pythonic qwen3_coder
"""


@pytest.mark.parametrize("name", sorted({*VLLM.split(), *SGLANG.split(), *DYNAMO.split()}))
def test_the_engines_parser_names_are_accepted(name: str) -> None:
    assert tables_of(name)


def test_every_alias_stands_for_tables_that_exist() -> None:
    for alias, names in ALIASES.items():
        assert set(names) <= set(NAMES), alias


def test_some_aliases() -> None:
    assert [table.name for table in tables_of("openai")] == ["harmony"]
    assert [table.name for table in tables_of("mistral")] == ["mistral_array", "mistral_object", "mistral"]
    assert [table.name for table in tables_of("llama3")] == [
        "llama3_json",
        "llama3_bare",
        "llama3_text",
        "json_start",
    ]
    assert [table.name for table in tables_of("nemotron_deci")] == ["nemotron_deci", "json_start"]
    assert tables_of("hunyuan_a13b") == tables_of("jamba")
    with pytest.raises(LocalMisuse, match="gpt_os"):
        tables_of("gpt_os")


def test_auto_leaves_out_what_only_a_name_chooses() -> None:
    names = [table.name for table in tables_of("auto")]
    assert "pythonic" not in names and "phi4" not in names
    assert {table.name for table in TABLES} - set(names) == {"pythonic", "phi4", "llama3_text", "json_start"}


def test_tables_that_share_an_opener_are_tried_in_the_right_order() -> None:
    order = [table.name for table in TABLES]
    for names in (
        ("hermes", "qwen_coder", "granite_tag", "glm"),
        ("mistral_array", "mistral_object", "mistral"),
        ("invoke", "olmo3"),
    ):
        assert sorted(names, key=order.index) == list(names)


def test_headers_match_every_beginning_of_themselves() -> None:
    """A header that arrives in pieces must not be refused before it is whole."""
    headers = {
        "mistral": "get_weather[CALL_ID]a1B2c3D4e",
        "harmony": "functions.get_weather <|constrain|>json",
        "hy_v3": "get_weather",
        "step3": '"get_weather"',
        "minicpm5": '"get_weather"',
        "olmo3": "\n",
    }
    for table in TABLES:
        header = headers.get(table.name)
        if header is None or table.header is None:
            continue
        assert all(table.header.fullmatch(header[:size]) for size in range(len(header) + 1)), table.name
        found = table.header.fullmatch(header)
        assert found is not None and found["name"] in ("get_weather", "")
        if table.name == "mistral":
            assert found["id"] == "a1B2c3D4e"


def test_every_new_table_has_at_least_five_samples() -> None:
    old = {"kimi_k2", "kimi_k3", "hermes", "qwen_coder", "glm", "deepseek_v3", "deepseek_v31", "dsml", "invoke"}
    new = {table.name for table in TABLES} - old - {"invoke_prefixed", "minimax_m3"}
    assert {*FORMATS, *formats_more.FORMATS} >= new
    assert all(len(FORMATS.get(name, [])) + len(formats_more.FORMATS.get(name, [])) >= 5 for name in new)
