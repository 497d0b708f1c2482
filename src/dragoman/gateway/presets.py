"""Presets: the defaults of known services, and the configuration that is used if no upstream is configured.

A preset has the form of a table `[upstreams.NAME]`; values of the configuration file override it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SIMULATOR = "simulator"

# These services run models that may write tool calls as raw tokens (docs/decisions/raw_tools.md#d20).
_RAW = {"raw_tools": "auto"}
_OPEN_MODELS = {"max_tokens_field": "max_tokens", "custom_tools": False}
_MORE_SAMPLING = {**_OPEN_MODELS, "more_knobs": ["top_k", "min_p", "repetition_penalty"]}

PRESETS: dict[str, dict[str, Any]] = {
    "kiro": {
        "dialect": "kiro",
        "base_url": "https://q.{region}.amazonaws.com",
        "credentials": ["auto"],
        "models": ["auto", "claude-*", "gpt-5.6-*", "deepseek-*", "minimax-*", "glm-*", "qwen3-*"],
        "limits": {"concurrency": 8},
    },
    "bedrock": {
        "dialect": "bedrock",
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
        "base_url": "https://api.moonshot.ai/v1",
        "key": "env:MOONSHOT_API_KEY",
        "models": ["kimi-*", "moonshot-*"],
        "settings": _OPEN_MODELS,
        "translation": _RAW,
    },
    "vllm": {
        "dialect": "openai",
        "base_url": "http://127.0.0.1:8000/v1",
        "settings": _MORE_SAMPLING,
        "translation": _RAW,
    },
    "sglang": {
        "dialect": "openai",
        "base_url": "http://127.0.0.1:30000/v1",
        "settings": _MORE_SAMPLING,
        "translation": _RAW,
    },
    "openrouter": {
        "dialect": "openai",
        "base_url": "https://openrouter.ai/api/v1",
        "key": "env:OPENROUTER_API_KEY",
        "models": ["*/*"],
        "settings": {**_MORE_SAMPLING, "reasoning_field": "reasoning", "user_limit": 128, "file_urls": True},
        "translation": _RAW,
    },
    "anthropic": {
        "dialect": "anthropic",
        "base_url": "https://api.anthropic.com",
        "key": "env:ANTHROPIC_API_KEY",
        "models": ["claude-*"],
        "translation": {"raw_tools": "off"},
    },
    "openai": {
        "dialect": "openai",
        "base_url": "https://api.openai.com/v1",
        "key": "env:OPENAI_API_KEY",
        "models": ["gpt-*", "chatgpt-*", "codex-*", "o1*", "o3*", "o4*"],
        "translation": {"raw_tools": "off"},
    },
    "gemini": {
        "dialect": "gemini",
        "base_url": "https://generativelanguage.googleapis.com",
        "key": "env:GEMINI_API_KEY",
        "models": ["gemini-*", "gemma-*"],
        "translation": {"raw_tools": "off"},
    },
    "ollama": {
        "dialect": "ollama",
        "base_url": "http://127.0.0.1:11434",
        "timeouts": {"first_byte": 600},  # Ollama may have to load the model first.
        "limits": {"concurrency": 2},  # By default Ollama handles one request at a time.
        "translation": _RAW,
    },
    SIMULATOR: {"dialect": "kiro"},
}

# One simulator per dialect; all other models go to the first.
BUILT_IN: dict[str, Any] = {
    "upstreams": {
        "simulator": {
            "preset": SIMULATOR,
            "dialect": "kiro",
            "models": ["claude-sonnet-4.5", "claude-opus-4.5", "claude-haiku-4.5", "auto"],
        },
        "simulator-anthropic": {"preset": SIMULATOR, "dialect": "anthropic"},
        "simulator-openai": {"preset": SIMULATOR, "dialect": "openai", "translation": _RAW},
        "simulator-bedrock": {"preset": SIMULATOR, "dialect": "bedrock"},
        "simulator-gemini": {"preset": SIMULATOR, "dialect": "gemini"},
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
_ARN_REGION = re.compile(r"arn:[\w-]+:\w+:([\w-]+):")


def preset_of(name: str, given: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the preset for a table of the configuration (`given`); empty for an unknown name.

    A configured key or credentials replace those of the preset.
    """
    preset = dict(PRESETS.get(name, {}))
    variable = _BEARER.get(name, "")
    if environ.get(variable):  # The bearer token takes precedence, as in AWS's own tools.
        preset.pop("credentials", None)
        preset["key"] = f"env:{variable}"
    if "key" in given or "credentials" in given:
        preset.pop("key", None)
        preset.pop("credentials", None)
    if "{region}" in preset.get("base_url", "") and "base_url" not in given and "region" not in given:
        region = _region(name, given, environ)
        if region:
            preset["region"] = region
    return preset


def _region(name: str, given: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    settings = given.get("settings")
    arn = settings.get("profile_arn") if isinstance(settings, Mapping) else None
    if isinstance(arn, str) and (found := _ARN_REGION.match(arn)):
        return found[1]
    for variable in _REGION_VARIABLES.get(name, ()):
        if environ.get(variable):
            return environ[variable]
    return _REGION.get(name, "")
