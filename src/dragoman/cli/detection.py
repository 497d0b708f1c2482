"""Find keys and logins on this machine (variables, Kiro logins, AWS), and build a configuration from them.

`init`, `models`, `run` and `config` use it. `detect_upstreams` reads the environment and finds files, not secrets.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from dragoman.errors import LocalMisuse
from dragoman.gateway.config import Config, LoadedConfig, build_config, find_file, load_with_origins
from dragoman.gateway.presets import PRESETS
from dragoman.gateway.secrets import KEY_PREFIX, ConfiguredSecret, app_folders
from dragoman.gateway.show import toml_value
from dragoman.gateway.targets import Routes
from dragoman.wire.jsonio import Json

if TYPE_CHECKING:
    from dragoman.upstream.kiro.logins import FoundLogin

NOTHING_FOUND = "no key and no login was found on this machine"

DEFAULT_MODELS: dict[str, str] = {
    name: preset["default_model"] for name, preset in PRESETS.items() if "default_model" in preset
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
    """Return the services with a key or a login, in order of preference. Logins made with the simulator are none."""
    return [*_kiro(environ), *_keys(environ), *_aws(environ)]


def _kiro(environ: Mapping[str, str]) -> Iterator[DetectedUpstream]:
    names = [login.spec for login in _logins(environ) if not login.is_simulated]
    if names:
        yield DetectedUpstream("kiro", f"a Kiro login ({', '.join(names)})")


def _logins(environ: Mapping[str, str]) -> Sequence[FoundLogin]:
    from dragoman.upstream.kiro.logins import KiroPaths, find_logins

    return find_logins(KiroPaths(environ))


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
        lines += ["# For every other model name: its default_model answers, or its small_model for small models."]
        lines += ["[default]", f"upstream = {toml_value(first)}"]
        lines += [f"# model = {toml_value(DEFAULT_MODELS[first])}"] if first in DEFAULT_MODELS else []
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
    settings = dict(flags or {})
    loaded = load_with_origins(file, environ, flags=settings)
    if not _is_built_in(loaded):
        if upstream is None:
            return loaded.config, None
        if upstream not in loaded.config.upstreams:
            raise LocalMisuse(
                f"there is no upstream {upstream!r}. The configuration has: {', '.join(loaded.config.upstreams)}"
            )
        return _only(loaded.config, upstream), None
    detected = detect_upstreams(environ) if upstream is None else [_detect_preset(upstream, environ)]
    if not detected:
        return loaded.config, []
    text = loaded.config.file.read_text(encoding="utf-8-sig") if loaded.config.file else ""
    return build_config(f"{text}\n{render_toml(detected)}", loaded.config.file, environ, settings).config, detected


def _only(config: Config, upstream: str) -> Config:
    """Return the configuration with one of its upstreams, which takes every model."""
    upstreams = {upstream: config.upstreams[upstream]}
    return structs.replace(config, upstreams=upstreams, routes=Routes(upstreams, (), None))


def _is_built_in(loaded: LoadedConfig) -> bool:
    return any(key[0] == "upstreams" and leaf.origin.layer == "built-in" for key, leaf in loaded.leaves.items())


def _detect_preset(preset: str, environ: Mapping[str, str]) -> DetectedUpstream:
    if preset not in PRESETS:
        raise LocalMisuse(f"there is no upstream and no preset {preset!r}. The presets are: {', '.join(PRESETS)}")
    matching = (each for each in detect_upstreams(environ) if each.preset == preset)
    return next(matching, DetectedUpstream(preset, f"the preset {preset} was requested"))


def stale_configuration(status: Mapping[str, Json], environ: Mapping[str, str]) -> str:
    """Return why a running gateway, by its status, does not have the configuration of now; empty if it has."""
    named = status.get("config")
    path = Path(named) if isinstance(named, str) else find_file(None, environ)[0]
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return f"{path} cannot be read any more" if isinstance(named, str) else ""
    if not isinstance(named, str):
        return f"{path} was written after the gateway had started without a configuration"
    digest, now = status.get("config_digest"), hashlib.sha256(text.encode()).hexdigest()
    return f"{path} changed after the gateway had loaded it" if isinstance(digest, str) and digest != now else ""


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
