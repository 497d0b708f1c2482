"""Find keys and logins on this machine (variables, Kiro logins, AWS), and build a configuration from them.

`init`, `models`, `run` and `config` use it. It reads the environment and the places of login files, not secrets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dragoman.errors import LocalMisuse
from dragoman.gateway.config import Config, LoadedConfig, build_config, load_with_origins
from dragoman.gateway.presets import PRESETS, SIMULATOR
from dragoman.gateway.secrets import KEY_PREFIX, ConfiguredSecret, app_folders
from dragoman.gateway.show import toml_value
from dragoman.gateway.upstream_config import Upstream

NOTHING_FOUND = "no key and no login was found on this machine"

# The model of the [default] route: it replaces names that no route matches. Other presets keep the client's name.
DEFAULT_MODELS = {
    "kiro": "claude-sonnet-4.5",
    "bedrock": "global.anthropic.claude-sonnet-4-5-20250929-v1:0",
    "moonshot": "kimi-k2.5",
    "openrouter": "anthropic/claude-sonnet-4.5",
    "anthropic": "claude-sonnet-4-5",
    "openai": "gpt-5",
    "gemini": "gemini-2.5-pro",
    SIMULATOR: "claude-sonnet-4.5",
}
_BEARER = "AWS_BEARER_TOKEN_BEDROCK"
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE")
_AWS_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_DEFAULT_REGION = "us-east-1"


class DetectedUpstream(Struct, frozen=True):
    """A service that this machine can use: its preset, a description, and the settings that differ from the preset."""

    preset: str
    what: str
    table: dict[str, Any] = {}


def key_variable(preset: str) -> str:
    """Return the environment variable that holds a preset's key; empty if it has none."""
    scheme, _, name = str(PRESETS[preset].get("key", "")).partition(":")
    return name if scheme == "env" else ""


def secret_variables(secrets: Iterable[ConfiguredSecret]) -> list[str]:
    """Return the environment variables that hold these secrets."""
    return [secret.shown.removeprefix("env:") for secret in secrets if secret.shown.startswith("env:")]


def detect_upstreams(environ: Mapping[str, str]) -> list[DetectedUpstream]:
    """Return the services with a key or a login, in order of preference. Files are found, but not read."""
    return [*_kiro(environ), *_keys(environ), *_aws(environ)]


def _kiro(environ: Mapping[str, str]) -> Iterator[DetectedUpstream]:
    from dragoman.upstream.kiro.logins import KiroPaths, find_logins

    logins = find_logins(KiroPaths(environ))
    if logins:
        names = ", ".join(login.spec for login in logins)
        yield DetectedUpstream("kiro", f"a Kiro login ({names})")


def _keys(environ: Mapping[str, str]) -> Iterator[DetectedUpstream]:
    for preset in PRESETS:
        variable = key_variable(preset)
        value = environ.get(variable, "").strip()
        if value and not value.startswith(KEY_PREFIX):  # a key of a dragoman gateway: using it would loop
            yield DetectedUpstream(preset, f"{variable} is set", {"key": f"env:{variable}"})


def _aws(environ: Mapping[str, str]) -> Iterator[DetectedUpstream]:
    file = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or app_folders(environ).home / ".aws" / "credentials")
    named = next((name for name in (_BEARER, *_AWS_KEYS) if environ.get(name)), "")
    if named or file.is_file():
        region = next((environ[name] for name in _AWS_REGIONS if environ.get(name)), _DEFAULT_REGION)
        login = {"key": f"env:{_BEARER}"} if named == _BEARER else {"credentials": "aws"}
        yield DetectedUpstream("bedrock", f"{named} is set" if named else f"{file} exists", {"region": region, **login})


# --- the configuration


def render_toml(detected: Sequence[DetectedUpstream]) -> str:
    """Return the TOML tables for the detected upstreams. The first one becomes the [default] route."""
    lines: list[str] = []
    for each in detected:
        lines += [f"# {each.what[:1].upper()}{each.what[1:]}.", f"[upstreams.{each.preset}]"]
        lines += [f"{name} = {toml_value(value)}" for name, value in {"preset": each.preset, **each.table}.items()]
        if models := PRESETS[each.preset].get("models"):
            lines.append(f"# models = {toml_value(models)}")
        lines.append("")
    if detected:
        first = detected[0].preset
        lines += ["# For every other model name, such as the small models that clients request in the background."]
        lines += ["[default]", f"upstream = {toml_value(first)}"]
        lines += [f"model = {toml_value(DEFAULT_MODELS[first])}"] if first in DEFAULT_MODELS else []
    return "\n".join(lines) + "\n"


def load_or_detect(
    file: Path | None,
    environ: Mapping[str, str],
    *,
    flags: Mapping[str, Any] | None = None,
    upstream: str | None = None,
) -> tuple[Config, list[DetectedUpstream] | None]:
    """Load the configuration; if it names no upstream, add the upstreams that are detected on this machine.

    Return the configuration, and the detected upstreams: None if the configuration names its own, an empty list if
    nothing was detected, in which case the simulator is used. `upstream` makes one upstream serve all models.
    Raises ConfigError, and LocalMisuse if `upstream` does not exist.
    """
    given = dict(flags or {})
    loaded = load_with_origins(file, environ, flags=given)
    if not _is_built_in(loaded):
        if upstream is None:
            return loaded.config, None
        if upstream not in loaded.config.upstreams:
            raise LocalMisuse(
                f"there is no upstream {upstream!r}. The configuration has: {', '.join(loaded.config.upstreams)}"
            )
        given["routes"] = [{"match": "*", "upstream": upstream}]
        return load_with_origins(file, environ, flags=given).config, None
    detected = detect_upstreams(environ) if upstream is None else [_detect_preset(upstream, environ)]
    if not detected:
        return loaded.config, []
    text = loaded.config.file.read_text(encoding="utf-8-sig") if loaded.config.file else ""
    return build_config(f"{text}\n{render_toml(detected)}", loaded.config.file, environ, given).config, detected


def _is_built_in(loaded: LoadedConfig) -> bool:
    return any(key[0] == "upstreams" and leaf.origin.layer == "built-in" for key, leaf in loaded.leaves.items())


def _detect_preset(preset: str, environ: Mapping[str, str]) -> DetectedUpstream:
    if preset not in PRESETS:
        raise LocalMisuse(f"there is no upstream and no preset {preset!r}. The presets are: {', '.join(PRESETS)}")
    found = (each for each in detect_upstreams(environ) if each.preset == preset)
    return next(found, DetectedUpstream(preset, f"the preset {preset} was requested"))


def missing_credential(upstream: Upstream, environ: Mapping[str, str]) -> str:
    """Return which key or login this upstream lacks; empty if none is known to be missing."""
    wanted = secret_variables(upstream.keys)
    if wanted and len(wanted) == len(upstream.keys) and not any(environ.get(name) for name in wanted):
        return f"{upstream.name} needs the environment variable {' or '.join(wanted)}"
    if any(login.source != "aws" for login in upstream.logins) and not list(_kiro(environ)):
        return f"{upstream.name} needs a login (run `dragoman auth login kiro`)"
    return ""


def setup_hints() -> list[str]:
    """Return what a user without a key or a login can do, as lines."""
    named = [name for name in map(key_variable, PRESETS) if name]
    return [
        f"Set one of {', '.join(named)}, {_BEARER},",
        "or log in: dragoman auth login kiro",
        "or write a configuration: dragoman init",
        "or try it without a key: dragoman demo; dragoman run --upstream simulator …",
    ]


def upstream_variables(config: Config) -> set[str]:
    """Return the variables with keys of upstreams or settings of ours, which a client does not need.

    Variables such as HTTPS_PROXY are not among them: a client may need its proxy.
    """
    named = {name for name in secret_variables(config.secrets()) if not name.lower().endswith("_proxy")}
    known = {name for name in map(key_variable, PRESETS) if name}
    return named | known | {_BEARER} | {name for name in os.environ if name.startswith("DRAGOMAN_")}
