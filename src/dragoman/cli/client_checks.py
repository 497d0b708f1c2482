"""What may keep clients on this machine from the gateway: their environment, and what they have saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from dragoman.cli.scene import Check, Scene
from dragoman.errors import UnknownModel
from dragoman.gateway.config import Config, ConfigError
from dragoman.gateway.secrets import read_private
from dragoman.http.addresses import is_loopback
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json


def look_at_clients(scene: Scene) -> Iterator[Check]:
    found = [check for look in _CLIENT_LOOKS for check in look(scene)]
    yield from found or [Check("clients", "pass", "nothing in this environment stands in a client's way")]


def _anthropic(scene: Scene) -> Iterator[Check]:
    environ = scene.environ
    if environ.get("ANTHROPIC_API_KEY") and not _is_key(scene, environ["ANTHROPIC_API_KEY"]):
        what = "ANTHROPIC_API_KEY is set: Claude Code may send it in place of ANTHROPIC_AUTH_TOKEN"
        needed = any(key.shown == "env:ANTHROPIC_API_KEY" for each in scene.upstreams for key in each.keys)
        remedy = "env -u ANTHROPIC_API_KEY … claude" if needed else "unset ANTHROPIC_API_KEY"
        yield Check("clients", "warn", what, remedy)
    base = environ.get("ANTHROPIC_BASE_URL", "")
    if base and _is_here(base):
        if urlsplit(base).path.rstrip("/").endswith("/v1"):
            what = "ANTHROPIC_BASE_URL ends in /v1, which clients append themselves"
            yield Check("clients", "warn", what, "leave the path out: http://HOST:PORT")
        token = environ.get("ANTHROPIC_AUTH_TOKEN", "")
        if token and not _is_key(scene, token):
            what = "ANTHROPIC_AUTH_TOKEN is not this gateway's key"
            yield Check("clients", "warn", what, f'ANTHROPIC_AUTH_TOKEN="$(cat {scene.places.key_file})"')
    for name in ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"):
        if environ.get(name, "0").lower() not in ("", "0", "false"):
            yield Check(
                "clients", "warn", f"{name} is set: Claude Code does not read ANTHROPIC_BASE_URL then", f"unset {name}"
            )


def _saved(scene: Scene) -> Iterator[Check]:
    config = scene.loaded.config if scene.loaded else None
    for client in _SAVED:
        yield from saved_settings(client, scene.places.home, config)


def saved_settings(client: str, home: Path, config: Config | None) -> Iterator[Check]:
    """What a client has saved that goes before its environment. Its files are only read."""
    place, look = _SAVED.get(client, ("", None))
    file = home / place
    if look is None:
        return
    try:
        saved = jsonio.decode(file.read_bytes())
    except (OSError, jsonio.JsonError):
        return
    if isinstance(saved, dict):
        yield from look(saved, file, config)


def _claude(saved: dict[str, Json], file: Path, config: Config | None) -> Iterator[Check]:
    inner = saved.get("env")
    names = inner if isinstance(inner, dict) else {}
    if saved.get("apiKeyHelper") or names.get("ANTHROPIC_API_KEY"):
        what = f"{file} gives Claude Code a key of its own, which may go before ANTHROPIC_AUTH_TOKEN"
        yield Check("clients", "warn", what, "take apiKeyHelper or env.ANTHROPIC_API_KEY out of it")
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"):
        if names.get(name):
            what = f"{file} sets {name}, which goes before the environment's"
            yield Check("clients", "warn", what, f"take env.{name} out of it")
    model = saved.get("model")
    if isinstance(model, str) and config is not None:
        try:
            config.resolve(model)
        except UnknownModel as error:
            remedy = f"choose another with /model, or add a route (or [default]) for it; it is saved in {file}"
            yield Check("clients", "warn", f"Claude Code's saved model: {error}", remedy)


def _gemini(saved: dict[str, Json], file: Path, _: Config | None) -> Iterator[Check]:
    chosen: Json = saved
    for name in ("security", "auth", "selectedType"):
        chosen = chosen.get(name) if isinstance(chosen, dict) else None
    if isinstance(chosen, str) and chosen not in ("gateway", "gemini-api-key"):
        what = f"{file} says that gemini-cli logs in by {chosen}, so that it does not ask the gateway"
        yield Check("clients", "warn", what, "choose the API key with /auth")


def _openai(scene: Scene) -> Iterator[Check]:
    base = scene.environ.get("OPENAI_BASE_URL", "")
    if base and _is_here(base) and not urlsplit(base).path.rstrip("/").endswith("/v1"):
        yield Check("clients", "warn", "OPENAI_BASE_URL does not end in /v1, which OpenAI's SDKs expect", "append /v1")


def _proxies(scene: Scene) -> Iterator[Check]:
    """Clients on this machine would ask the proxy for loopback."""
    environ = {name.lower(): value for name, value in scene.environ.items() if value}
    named = next((name for name in ("http_proxy", "all_proxy") if name in environ), None)
    spared = environ.get("no_proxy", "")
    if named and not any(each in spared for each in ("127.0.0.1", "localhost", "*")):
        what = f"{named.upper()} is set and NO_PROXY does not spare loopback: clients may not reach the gateway"
        yield Check("clients", "warn", what, "export NO_PROXY=127.0.0.1,localhost")


def _is_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _is_key(scene: Scene, value: str) -> bool:
    try:
        return value == read_private(scene.places.key_file).decode().strip()
    except (OSError, ConfigError, UnicodeDecodeError):
        return False


_Saved: TypeAlias = Callable[[dict[str, Json], Path, Config | None], Iterator[Check]]
_SAVED: dict[str, tuple[str, _Saved]] = {
    "claude": (".claude/settings.json", _claude),
    "gemini": (".gemini/settings.json", _gemini),
}
_CLIENT_LOOKS: tuple[Callable[[Scene], Iterator[Check]], ...] = (_anthropic, _saved, _openai, _proxies)
