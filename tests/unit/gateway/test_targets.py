"""Which model answers for a name that nothing names, and what the list of models contains."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.dialects.base import ListedModel
from dragoman.errors import UnknownModel
from dragoman.gateway.config import Config, build_config
from dragoman.gateway.model_entries import MAX_ENTRIES, known_models
from dragoman.gateway.model_names import first_chat_model, is_small
from dragoman.gateway.presets import PRESETS
from dragoman.gateway.targets import NameList, Target


def config(text: str) -> Config:
    return build_config(text, Path("/c/config.toml"), {"HOME": "/h", "AWS_REGION": "eu-west-1"}, {}).config


def found(text: str, model: str, **lists: list[str]) -> Target:
    return config(text).routes.resolve(model, {name: NameList(names) for name, names in lists.items()})[0]


def preset(name: str, upstream: str = "u", more: str = "") -> str:
    return f'[upstreams.{upstream}]\npreset = "{name}"\n{more}\n'


# --- a lone upstream takes any name

FIXED = [name for name in PRESETS if "default_model" in PRESETS[name]]


@pytest.mark.parametrize("name", FIXED)
def test_a_preset_with_fixed_models_names_a_default_and_a_small_one_that_it_takes(name: str) -> None:
    upstream = config(preset(name)).upstreams["u"]
    for model in (upstream.default_model, upstream.small_model):
        target = found(preset(name), model)
        assert (target.model, target.is_default) == (model, False)


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("model", ["some-unheard-of-model", "another/of-9", "GPT-77"])
def test_a_lone_upstream_answers_any_name_with_its_default_model(name: str, model: str) -> None:
    if name == "openrouter" and "/" in model:
        return  # its pattern takes such names
    target = found(preset(name), model)
    assert (target.model, target.is_default) == (PRESETS[name]["default_model"], True)


@pytest.mark.parametrize(
    ("model", "small"),
    [
        ("claude-3-5-haiku-20241022", True),
        ("claude-haiku-4-5", True),
        ("gpt-5-mini", True),
        ("gpt-4.1-nano", True),
        ("gemini-2.5-flash", True),
        ("gemini-2.5-flash-lite", True),
        ("mistral-small-latest", True),
        ("gemini-2.5-pro", False),  # "mini" is no word of it
        ("minimax-m2", False),
        ("claude-opus-5-5", False),
        ("gpt-6.1-sol", False),
        ("nanotron", False),
    ],
)
def test_names_of_small_models_get_the_small_model(model: str, small: bool) -> None:
    assert is_small(model) is small
    chosen = found(preset("vllm", more='default_model = "d"\nsmall_model = "s"'), model).model
    assert chosen == ("s" if small else "d")
    assert found(preset("vllm", more='default_model = "d"'), model).model == "d"  # without a small one


def test_a_name_that_the_upstream_serves_keeps_it() -> None:
    kimi = preset("moonshot")
    assert found(kimi, "kimi-k9").model == "kimi-k9"
    assert found(kimi, "claude-x", u=["claude-x"]) == Target(config(kimi).upstreams["u"], "claude-x")
    assert found(kimi, "Claude.X-20260101", u=["claude-x"]).model == "claude-x"  # another spelling of a listed name
    assert found(kimi, "claude-y", u=["claude-x"]).model == "kimi-k2.5"


def test_a_server_of_any_model_answers_with_the_first_of_its_list() -> None:
    for name in ("vllm", "sglang", "ollama"):
        assert "default_model" not in PRESETS[name]
        target = found(preset(name), "claude-opus-5-5", u=["nomic-embed-text", "qwen3:8b", "llama3:latest"])
        assert (target.model, target.is_default) == ("qwen3:8b", True)
        assert found(preset(name), "llama3", u=["qwen3:8b", "llama3:latest"]).model == "llama3:latest"
        assert found(preset(name), "anything") == Target(config(preset(name)).upstreams["u"], "anything")
        assert config(preset(name)).routes.lists_to_fetch("anything") == ["u"]


def test_an_upstream_without_a_preset_gets_names_unchanged_whatever_its_list_is() -> None:
    text = '[upstreams.u]\ndialect = "openai"\nbase_url = "http://127.0.0.1:1"\n'
    assert found(text, "x", u=["y"]) == Target(config(text).upstreams["u"], "x")
    assert config(text).routes.lists_to_fetch("x") == []
    assert found(f'{text}models = ["m-*", "m-1"]\n', "x").model == "m-1"  # the first that it names itself
    assert found(f'{text}default_model = "d"\n', "x").model == "d"


def test_configured_models_that_exclude_the_presets_default_remove_it() -> None:
    text = preset("moonshot", more='models = ["my-model"]')
    assert config(text).upstreams["u"].default_model == ""
    assert found(text, "claude-x").model == "my-model"
    assert config(preset("moonshot", more='models = ["kimi-*"]')).upstreams["u"].default_model == "kimi-k2.5"


def test_a_default_route_without_a_model_uses_the_models_of_its_upstream() -> None:
    text = preset("moonshot", "kimi") + preset("anthropic", "claude") + '[default]\nupstream = "claude"\n'
    assert [found(text, name).model for name in ("gpt-5", "gpt-5-mini")] == ["claude-sonnet-4-5", "claude-haiku-4-5"]
    assert found(text, "gpt-5").is_default and not found(text, "claude-x").is_default
    fallback = config(text + 'fallbacks = "kimi"\n').routes.resolve("gpt-5")
    assert [(target.upstream.name, target.model) for target in fallback] == [
        ("claude", "claude-sonnet-4-5"),
        ("kimi", "kimi-k2.5"),
    ]


def test_a_pattern_is_no_proof_where_the_services_own_list_says_otherwise() -> None:
    kiro = preset("kiro")
    assert config(kiro).routes.lists_to_fetch("claude-opus-5-5") == ["u"]
    assert config(kiro).routes.lists_to_fetch("claude-sonnet-4-5") == []  # the dialect knows it
    assert found(kiro, "claude-opus-5-5").model == "claude-opus-5-5"  # nothing is known: as before
    assert found(kiro, "claude-opus-5-5", u=["auto", "claude-opus-5.5"]).model == "claude-opus-5-5"
    target = found(kiro, "claude-opus-5-5", u=["auto", "claude-sonnet-4.5"])
    assert (target.model, target.is_default) == ("claude-sonnet-4.5", True)
    both = kiro + preset("anthropic", "direct")
    assert found(both, "claude-opus-5-5", u=["claude-sonnet-4.5"]).upstream.name == "direct"


def test_with_several_upstreams_a_listed_name_finds_its_upstream_and_an_unknown_one_is_a_404() -> None:
    text = preset("moonshot", "kimi") + preset("vllm", "box")
    assert found(text, "Qwen/Qwen3", box=["Qwen/Qwen3"]).upstream.name == "box"
    with pytest.raises(UnknownModel) as caught:
        found(text, "Qwen/Qwen4", box=["Qwen/Qwen3"])
    for words in ("kimi-*", "UPSTREAM/MODEL (upstreams: kimi, box)", "[default]", "`dragoman models`"):
        assert words in str(caught.value)


def test_a_name_that_the_default_route_answers_is_marked() -> None:
    text = preset("moonshot", "kimi") + preset("vllm", "box") + '[default]\nupstream = "kimi"\nmodel = "kimi-k2"\n'
    assert found(text, "claude-mistyped").is_default
    assert not found(text, "kimi-k2").is_default and not found(text, "box/claude-mistyped").is_default


def test_models_that_do_not_chat_are_never_chosen() -> None:
    assert first_chat_model(["text-embedding-3", "whisper-1", "gpt-5"]) == "gpt-5"
    assert first_chat_model(["bge-reranker"]) == ""


# --- the list of models. Every name in it leads to the upstream and the model of its entry

NAMES = st.sampled_from(["a", "b", "claude-x", "kimi-1", "one/a", "two/b", "one/two/a", "gpt-5-mini", "A", "a-latest"])
LISTS = st.dictionaries(st.sampled_from(["one", "two", "three"]), st.lists(NAMES, min_size=1, max_size=4, unique=True))
TEXTS = st.sampled_from(
    [
        preset("moonshot", "one") + preset("vllm", "two") + preset("kiro", "three"),
        preset("openrouter", "one") + preset("anthropic", "two") + preset("ollama", "three", 'models = ["a", "b*"]'),
        preset("vllm", "one") + preset("vllm", "two") + '[[routes]]\nmatch = ["a", "claude-*"]\nupstream = "two"\n'
        'model = "kimi-1"\n[default]\nupstream = "one"\nmodel = "a"\n' + preset("simulator", "three"),
        preset("vllm", "one") + '[[routes]]\nmatch = "b"\nupstream = "one"\nfallbacks = "one/kimi-1"\n',
    ]
)


@given(TEXTS, LISTS)
def test_every_listed_name_leads_to_its_entry_and_every_model_of_a_list_is_there(
    text: str, lists: dict[str, list[str]]
) -> None:
    here = config(text)
    lists = {name: models for name, models in lists.items() if name in here.upstreams}
    entries = known_models(here, {name: [ListedModel(model) for model in models] for name, models in lists.items()})
    known = {name: NameList(models) for name, models in lists.items()}
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries:
        target = here.routes.resolve(entry.name, known)[0]
        assert (target.upstream.name, target.model) == (entry.upstream, entry.model), entry
    reachable = {(entry.upstream, entry.model) for entry in entries}
    assert reachable >= {(name, model) for name, models in lists.items() for model in models}


def test_an_ordinary_configuration_lists_its_models() -> None:
    names = [entry.name for entry in known_models(config(preset("moonshot", "kimi")))]
    assert names == ["kimi-k2.5"]


def test_the_list_has_at_most_2000_names_and_a_figure_for_each_that_is_known() -> None:
    many = [ListedModel(f"m-{number}", 1000, 10) for number in range(3000)]
    entries = known_models(config(preset("vllm")), {"u": many})
    assert len(entries) == MAX_ENTRIES == 2000
    assert (entries[0].window, entries[0].max_output_tokens, entries[0].source) == (1000, 10, "list")


@pytest.mark.parametrize(
    ("value", "field"), [("default_model = 3", "default_model"), ("first_model = 'yes'", "first_model")]
)
def test_a_setting_of_the_wrong_type_is_refused(value: str, field: str) -> None:
    from dragoman.gateway.layers import ConfigError

    with pytest.raises(ConfigError, match=f"upstreams.u.{field}"):
        config(preset("vllm", more=value))
