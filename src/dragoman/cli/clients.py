"""The one line each client needs to use a gateway. No key is printed: the lines say where the shell finds it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from msgspec import Struct

import dragoman.dialects as registry
from dragoman.cli.recipes import CLIENTS, SDKS, Prepared, Recipe, prepare
from dragoman.gateway.config import Config
from dragoman.gateway.secrets import places

_KEY = "\x00the-key\x00"  # stands for it until the line is quoted
_SHOWN = ("claude", "codex")


class Client(Struct, frozen=True):
    """How one client is pointed at a gateway: a line for a shell, or for a program."""

    name: str
    line: str
    hint: str = ""


def key_words(config: Config, environ: Mapping[str, str]) -> str:
    """What a shell replaces by the gateway's key: it stands in no history, no log and on no screen."""
    return shell_key(config, environ) or "YOUR_SERVER_KEY"


def shell_key(config: Config, environ: Mapping[str, str]) -> str:
    """What a shell replaces by the gateway's key; empty for a key that only a program can find."""
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
            home, _, path = rest.partition("/")  # the shell knows who ~ is as long as it stands bare
            return f'"$(cat {home}/{shlex.quote(path)})"'
        case _:
            return ""


def clients(url: str, key: str) -> list[Client]:
    """The lines, for a gateway at this address whose key a shell writes so."""
    served = registry.names()
    return [
        *(_started(recipe, url, key) for recipe in CLIENTS if recipe.name in _SHOWN),
        *(_exported(recipe, url, key) for recipe in SDKS if recipe.dialect in served),
    ]


def _started(recipe: Recipe, url: str, key: str) -> Client:
    made = prepare(recipe, url=url, key=_KEY, model="")
    unset = [word for name in made.unset[:1] for word in ("-u", name)]
    line = " ".join([*(["env", *unset] if unset else []), *assignments(made, key), recipe.name, *map(_word, made.args)])
    return Client(recipe.title, line, recipe.note)


def _exported(recipe: Recipe, url: str, key: str) -> Client:
    made = prepare(recipe, url=url, key=_KEY, model="")
    return Client(recipe.title, f"export {' '.join(assignments(made, key))}", recipe.note.replace("{url}", url))


def assignments(made: Prepared, key: str, stands_for: str = _KEY) -> list[str]:
    """NAME=VALUE for a shell, each value quoted; where the key stands, the words that make it."""
    return [f"{name}={key if value == stands_for else _word(value)}" for name, value in made.env.items()]


def _word(text: str) -> str:
    return shlex.quote(text)
