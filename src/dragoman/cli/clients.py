"""The one line each client needs to use a gateway. No key is printed: the lines say where the shell finds it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from msgspec import Struct

import dragoman.dialects as registry
from dragoman.gateway.config import Config
from dragoman.gateway.places import places


class Client(Struct, frozen=True):
    """How one client is pointed at a gateway: a line for a shell, or for a program."""

    name: str
    line: str
    hint: str = ""


def key_words(config: Config, environ: Mapping[str, str]) -> str:
    """What a shell replaces by the gateway's key: it stands in no history, no log and on no screen."""
    key = config.server.key
    if key is None:
        return f'"$(cat {shlex.quote(str(places(environ).key_file))})"'
    scheme, _, rest = key.shown.partition(":")
    match scheme:
        case "env":
            return f'"${rest}"'
        case "file" if not rest.startswith("~"):
            return f'"$(cat {shlex.quote(rest)})"'
        case "file":
            return f'"$(cat {rest})"'
        case _:
            return "YOUR_SERVER_KEY"


def clients(url: str, key: str) -> list[Client]:
    """The lines, for a gateway at this address whose key a shell writes so."""
    return [
        Client(
            "Claude Code",
            f"env -u ANTHROPIC_API_KEY ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={key} claude",
            "a stray ANTHROPIC_API_KEY would go before the token",
        ),
        Client("Anthropic SDKs", f"export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY={key}"),
        Client("OpenAI SDKs", f"export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}"),
        _codex(url, key),
        Client(
            "boto3",
            f"export AWS_ENDPOINT_URL_BEDROCK_RUNTIME={url} AWS_ACCESS_KEY_ID=dragoman"
            f" AWS_SECRET_ACCESS_KEY={key} AWS_DEFAULT_REGION=us-east-1",
            f'or in code: boto3.client("bedrock-runtime", endpoint_url="{url}")',
        ),
    ]


def _codex(url: str, key: str) -> Client:
    served = "responses" in registry.names()
    provider = {
        "name": "dragoman",
        "base_url": f"{url}/v1",
        "env_key": "DRAGOMAN_KEY",
        "wire_api": "responses" if served else "chat",
    }
    told = " ".join(f"""-c 'model_providers.dragoman.{name}="{value}"'""" for name, value in provider.items())
    hint = "it does not read OPENAI_BASE_URL"
    if not served:
        hint += "; versions that speak only the Responses API cannot be served yet: 0.80 still has `chat`"
    return Client("Codex", f"DRAGOMAN_KEY={key} codex -c model_provider=dragoman {told}", hint)
