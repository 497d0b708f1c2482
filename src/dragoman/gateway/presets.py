"""Presets: the defaults of known services, and the configuration that is used if no upstream is configured.

A preset has the form of a table `[upstreams.NAME]`; values of the configuration file override it. Servers that run any
model (vLLM, SGLang, Ollama) have no default model here: the first model of their own list is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dragoman.model.patterns import matches_pattern

SIMULATOR = "simulator"

# These services run models that may write tool calls as raw tokens (docs/decisions/raw_tools.md#d20).
_RAW = {"raw_tools": "auto"}
_OPEN_MODELS = {"max_tokens_field": "max_tokens", "custom_tools": False}
_MORE_SAMPLING = {**_OPEN_MODELS, "more_sampling": ["top_k", "min_p", "repetition_penalty"]}

PRESETS: dict[str, dict[str, Any]] = {
    "kiro": {
        "dialect": "kiro",
        "default_model": "claude-sonnet-4.5",
        "small_model": "claude-haiku-4.5",
        "base_url": "https://q.{region}.amazonaws.com",
        "credentials": ["auto"],
        "models": ["auto", "claude-*", "gpt-5.6-*", "deepseek-*", "minimax-*", "glm-*", "qwen3-*"],
        "limits": {"concurrency": 8},
    },
    "bedrock": {
        "dialect": "bedrock",
        "default_model": "global.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "small_model": "global.anthropic.claude-haiku-4-5-20251001-v1:0",
        "base_url": "https://bedrock-runtime.{region}.amazonaws.com",
        "credentials": ["aws"],
        "models": [
            *(f"{vendor}.*" for vendor in ("anthropic", "amazon", "meta", "mistral", "cohere", "deepseek", "openai")),
            *(f"{place}.*.*" for place in ("us", "eu", "apac", "global", "jp", "au", "us-gov")),
            "arn:aws*:bedrock:*",
        ],
    },
    "moonshot": {
        "dialect": "openai",
        "default_model": "kimi-k2.5",
        "small_model": "kimi-k2.5",
        "base_url": "https://api.moonshot.ai/v1",
        "key": "env:MOONSHOT_API_KEY",
        "models": ["kimi-*", "moonshot-*"],
        "settings": {**_OPEN_MODELS, "cache_key": True},
        "translation": _RAW,
    },
    "vllm": {
        "dialect": "openai",
        "first_model": True,
        "base_url": "http://127.0.0.1:8000/v1",
        "settings": _MORE_SAMPLING,
        "translation": _RAW,
    },
    "sglang": {
        "dialect": "openai",
        "first_model": True,
        "base_url": "http://127.0.0.1:30000/v1",
        "settings": _MORE_SAMPLING,
        "translation": _RAW,
    },
    "openrouter": {
        "dialect": "openai",
        "default_model": "anthropic/claude-sonnet-4.5",
        "small_model": "anthropic/claude-haiku-4.5",
        "base_url": "https://openrouter.ai/api/v1",
        "key": "env:OPENROUTER_API_KEY",
        "models": ["*/*"],
        "settings": {
            **_MORE_SAMPLING,
            "reasoning_field": "reasoning",
            "user_limit": 128,
            "file_urls": True,
            "cache_control": True,
            "web_search": "openrouter",
        },
        "translation": _RAW,
    },
    "anthropic": {
        "dialect": "anthropic",
        "default_model": "claude-sonnet-4-5",
        "small_model": "claude-haiku-4-5",
        "base_url": "https://api.anthropic.com",
        "key": "env:ANTHROPIC_API_KEY",
        "models": ["claude-*"],
        "translation": {"raw_tools": "off"},
    },
    "openai": {
        "dialect": "openai",
        "default_model": "gpt-5",
        "small_model": "gpt-5-mini",
        "base_url": "https://api.openai.com/v1",
        "key": "env:OPENAI_API_KEY",
        "models": ["gpt-*", "chatgpt-*", "codex-*", "o1*", "o3*", "o4*"],
        "settings": {"cache_key": True},
        "translation": {"raw_tools": "off"},
    },
    "gemini": {
        "dialect": "gemini",
        "default_model": "gemini-2.5-pro",
        "small_model": "gemini-2.5-flash",
        "base_url": "https://generativelanguage.googleapis.com",
        "key": "env:GEMINI_API_KEY",
        "models": ["gemini-*", "gemma-*"],
        "translation": {"raw_tools": "off"},
    },
    "ollama": {
        "dialect": "ollama",
        "first_model": True,
        "base_url": "http://127.0.0.1:11434",
        "timeouts": {"first_byte": 600},  # Ollama may have to load the model first.
        "limits": {"concurrency": 2},  # By default Ollama handles one request at a time.
        "translation": _RAW,
    },
    SIMULATOR: {
        "dialect": "kiro",
        "default_model": "claude-sonnet-4.5",
        "small_model": "claude-haiku-4.5",
    },
}

# One simulator per dialect; all other models go to the first. They stream as fast as a person reads.
_AS_READ = {"preset": SIMULATOR, "simulator": {"tokens_per_second": 60.0}}
BUILT_IN: dict[str, Any] = {
    "upstreams": {
        "simulator": {
            **_AS_READ,
            "dialect": "kiro",
            "models": ["claude-sonnet-4.5", "claude-opus-4.5", "claude-haiku-4.5", "auto"],
        },
        "simulator-anthropic": {**_AS_READ, "dialect": "anthropic"},
        "simulator-openai": {**_AS_READ, "dialect": "openai", "translation": _RAW},
        "simulator-bedrock": {**_AS_READ, "dialect": "bedrock"},
        "simulator-gemini": {**_AS_READ, "dialect": "gemini"},
    },
    "routes": [
        {"match": "sim-anthropic", "upstream": "simulator-anthropic", "model": "sim-model"},
        {"match": "sim-openai", "upstream": "simulator-openai", "model": "sim-model"},
        {"match": "sim-bedrock", "upstream": "simulator-bedrock", "model": "sim-model"},
        {"match": "sim-gemini", "upstream": "simulator-gemini", "model": "sim-model"},
    ],
    "default": {"upstream": "simulator", "model": "claude-sonnet-4.5"},
}

# The region if none is configured: a constant, or the value of a variable that AWS tools read.
_REGION = {"kiro": "us-east-1"}
_REGION_VARIABLES = {"bedrock": ("AWS_REGION", "AWS_DEFAULT_REGION")}
_BEARER = {"bedrock": "AWS_BEARER_TOKEN_BEDROCK"}
_DEFAULTS = ("default_model", "small_model")
_ARN_REGION = re.compile(r"arn:[\w-]+:\w+:([\w-]+):")


def preset_of(name: str, table: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the preset for a table of the configuration (`table`); empty for an unknown name.

    A configured key or credentials replace those of the preset, and configured `models` limit its default models.
    """
    preset = dict(PRESETS.get(name, {}))
    variable = _BEARER.get(name, "")
    if environ.get(variable):  # The bearer token takes precedence, as in AWS's own tools.
        preset.pop("credentials", None)
        preset["key"] = f"env:{variable}"
    if "key" in table or "credentials" in table:
        preset.pop("key", None)
        preset.pop("credentials", None)
    if name == SIMULATOR and table.get("dialect", "kiro") != "kiro":  # Other simulated services accept any name.
        preset = {key: value for key, value in preset.items() if key not in _DEFAULTS}
    _fit_models(preset, table.get("models"))
    if "{region}" in preset.get("base_url", "") and "base_url" not in table and "region" not in table:
        region = _region(name, table, environ)
        if region:
            preset["region"] = region
    return preset


def _fit_models(preset: dict[str, Any], models: object) -> None:
    """Remove default models of the preset that the configured `models` do not name: the service is another one."""
    named = [models] if isinstance(models, str) else models
    if isinstance(named, list):
        for key in _DEFAULTS:
            model = preset.get(key)
            if model is not None and not any(isinstance(each, str) and matches_pattern(each, model) for each in named):
                del preset[key]


def _region(name: str, table: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    settings = table.get("settings")
    arn = settings.get("profile_arn") if isinstance(settings, Mapping) else None
    if isinstance(arn, str) and (found := _ARN_REGION.match(arn)):
        return found[1]
    for variable in _REGION_VARIABLES.get(name, ()):
        if environ.get(variable):
            return environ[variable]
    return _REGION.get(name, "")
