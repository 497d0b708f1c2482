"""The environment variables and arguments that make each client use a gateway.

`CLIENTS` and `SDKS` are data: a new client is one row. A command that is in no row gets the variables of all SDKS.
`dragoman run` starts clients with these settings; `serve` and `demo` print them as shell lines.

In the texts of a row, {url} is the gateway's address, {key} its key, {model} the model to request and {small_model} the
one for background work, {window} the context window of these models in tokens. Settings that need a model are left out
while the upstreams serve the client's default models.
The text `{models}` becomes a table of all models. A value that is a dict is written as JSON.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

from msgspec import Struct

import dragoman.dialects as registry
from dragoman.cli.model_choice import ModelChoice
from dragoman.gateway.config import Config
from dragoman.gateway.model_entries import ModelEntry
from dragoman.gateway.model_names import is_small
from dragoman.gateway.secrets import AppFolders, app_folders
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

KEY_VARIABLE = "DRAGOMAN_KEY"  # for clients that are configured with the name of a variable


class ClientSetup(Struct, frozen=True, kw_only=True):
    """The settings of one client.

    `default_models` are the models that it requests by itself, each with the variable that replaces it, if any.
    """

    name: str
    title: str
    dialect: str = ""  # of its requests
    env: Mapping[str, Json] = {}
    args: tuple[str, ...] = ()  # before the user's arguments
    model_env: Mapping[str, str] = {}
    model_args: tuple[str, ...] = ()
    window_env: Mapping[str, str] = {}  # the context window of a model that it does not know
    has_claude_aliases: bool = False  # the private gateway lists other models under names that Claude Code shows
    has_catalogue: bool = False  # `run` gives it a catalogue of models (codex_catalogue.py)
    default_models: tuple[tuple[str, str], ...] = ()
    family: str = ""  # a word in the names of the models that it is made for
    needs_model: bool = False  # it has no default model that an upstream could serve
    unset: tuple[str, ...] = ()  # variables that would override `env`
    install: str = ""
    note: str = ""


_ANTHROPIC = {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "{key}"}
_OPENAI = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}"}
_GEMINI = {"GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_API_KEY": "{key}"}
_BEDROCK = {
    "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "{url}",
    "AWS_ACCESS_KEY_ID": "dragoman",
    "AWS_SECRET_ACCESS_KEY": "{key}",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_CODEX_PROVIDER = {
    "name": "dragoman",
    "base_url": "{url}/v1",
    "env_key": KEY_VARIABLE,
    "wire_api": "responses",
}

CLIENTS: tuple[ClientSetup, ...] = (
    ClientSetup(
        name="claude",
        title="Claude Code",
        dialect="anthropic",
        env={
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_AUTH_TOKEN": "{key}",
            "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",  # its model picker lists the gateway's Claude models
        },
        model_env={
            "ANTHROPIC_MODEL": "{model}",
            "CLAUDE_CODE_SUBAGENT_MODEL": "{model}",
            "ANTHROPIC_DEFAULT_FABLE_MODEL": "{model}",
        },
        window_env={"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "{window}"},  # otherwise it assumes a million
        has_claude_aliases=True,
        default_models=(
            ("claude-opus-5-5", "ANTHROPIC_DEFAULT_OPUS_MODEL"),
            ("claude-sonnet-4-5", "ANTHROPIC_DEFAULT_SONNET_MODEL"),
            ("claude-haiku-4-5", "ANTHROPIC_DEFAULT_HAIKU_MODEL"),
        ),
        family="claude",
        unset=("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
        install="npm install -g @anthropic-ai/claude-code",
        note="ANTHROPIC_API_KEY would override the token",
    ),
    ClientSetup(
        name="codex",
        title="Codex",
        dialect="responses",
        env={KEY_VARIABLE: "{key}"},
        args=(
            "-c",
            "model_provider=dragoman",
            *(
                word
                for name, value in _CODEX_PROVIDER.items()
                for word in ("-c", f'model_providers.dragoman.{name}="{value}"')
            ),
        ),
        model_args=("-c", 'model="{model}"'),
        default_models=(("gpt-6.1-sol", ""),),
        has_catalogue=True,
        family="gpt",
        install="npm install -g @openai/codex",
        note="it does not read OPENAI_BASE_URL",
    ),
    ClientSetup(
        name="opencode",
        title="opencode",
        dialect="anthropic",
        env={
            KEY_VARIABLE: "{key}",
            "OPENCODE_CONFIG_CONTENT": {
                "provider": {
                    "dragoman": {
                        "npm": "@ai-sdk/anthropic",
                        "name": "Dragoman",
                        "options": {"baseURL": "{url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"},
                        "models": "{models}",
                    }
                },
                "model": "dragoman/{model}",
                "small_model": "dragoman/{small_model}",
            },
        },
        needs_model=True,
        install="npm install -g opencode-ai",
    ),
    ClientSetup(
        name="gemini",
        title="gemini-cli",
        dialect="gemini",
        # Without a saved login, gemini-cli accepts a base URL only with Vertex's key; with one, also with an API key.
        env={
            **_GEMINI,
            "GOOGLE_GENAI_USE_VERTEXAI": "true",
            "GOOGLE_VERTEX_BASE_URL": "{url}",
            "GOOGLE_API_KEY": "{key}",
        },
        model_env={"GEMINI_MODEL": "{model}"},
        family="gemini",
        needs_model=True,  # by default it first requests a small model to choose the model
        unset=("GOOGLE_GENAI_USE_GCA",),
        install="npm install -g @google/gemini-cli",
    ),
    ClientSetup(
        name="aider",
        title="aider",
        dialect="openai",
        env={"OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "{key}"},
        model_env={"AIDER_MODEL": "openai/{model}", "AIDER_WEAK_MODEL": "openai/{small_model}"},
        needs_model=True,
        install="python3 -m pip install aider-chat",
    ),
    ClientSetup(
        name="goose",
        title="goose",
        dialect="anthropic",
        env={"GOOSE_PROVIDER": "anthropic", "ANTHROPIC_HOST": "{url}", "ANTHROPIC_API_KEY": "{key}"},
        model_env={"GOOSE_MODEL": "{model}"},
        needs_model=True,
        install="npm install -g @aaif/goose",
    ),
    ClientSetup(
        name="qwen",
        title="qwen-code",
        dialect="openai",
        env=_OPENAI,
        args=("--auth-type", "openai"),
        model_env={"OPENAI_MODEL": "{model}"},
        family="qwen",
        needs_model=True,
        install="npm install -g @qwen-code/qwen-code",
    ),
)

SDKS: tuple[ClientSetup, ...] = (
    ClientSetup(name="anthropic", title="Anthropic SDKs", dialect="anthropic", env=_ANTHROPIC),
    ClientSetup(name="openai", title="OpenAI SDKs", dialect="openai", env=_OPENAI),
    ClientSetup(name="google-genai", title="Google's SDKs", dialect="gemini", env=_GEMINI),
    ClientSetup(
        name="boto3",
        title="boto3",
        dialect="bedrock",
        env=_BEDROCK,
        note='or in code: boto3.client("bedrock-runtime", endpoint_url="{url}")',
    ),
)

# Any other command gets the variables of every SDK. A command with AWS credentials keeps them (`find_setup`).
ANY_COMMAND = ClientSetup(
    name="any other command",
    title="any other command",
    env={**_ANTHROPIC, **_OPENAI, "OPENAI_API_BASE": "{url}/v1", **_GEMINI, **_BEDROCK},
    unset=("ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY"),
)
_AWS_LOGINS = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE")
_PLACEHOLDER = re.compile(r"\{(url|key|model|small_model|window)\}")
_MAX_LISTED = 200  # models in a table: it is one environment variable


def find_setup(command: str, environ: Mapping[str, str]) -> ClientSetup:
    """Return the settings of a command, found by its file name; `ANY_COMMAND` for an unknown one."""
    name = PurePath(command).name
    known = next((setup for setup in CLIENTS if setup.name == name), None)
    if known is not None:
        return known
    if not any(environ.get(variable) for variable in _AWS_LOGINS):
        return ANY_COMMAND
    env = {name: value for name, value in ANY_COMMAND.env.items() if name not in _BEDROCK}
    return ClientSetup(name=ANY_COMMAND.name, title=ANY_COMMAND.title, env=env, unset=ANY_COMMAND.unset)


class ChildSetup(Struct, frozen=True):
    """The settings of a client with all placeholders filled in: its variables, arguments, and variables to unset."""

    env: dict[str, str]
    args: tuple[str, ...]
    unset: tuple[str, ...]
    model: str = ""  # that the client requests; empty: its own default models
    listed: tuple[ModelEntry, ...] = ()


def fill_setup(
    setup: ClientSetup,
    *,
    url: str,
    key: str,
    choice: ModelChoice,
    requested: str = "",
    is_served: Callable[[str], bool] = lambda name: True,
    listed: Sequence[ModelEntry] = (),
) -> ChildSetup:
    """Fill in the placeholders of a client's settings.

    `requested` is the model that the user chose; the model of `choice` replaces default models for which `is_served` is
    false, and its small model the small ones among them.
    """
    unserved = [(name, variable) for name, variable in setup.default_models if not is_served(name)]
    chosen = requested or (choice.model if unserved or setup.needs_model else "")
    small = choice.small_model or chosen
    values = {"url": url, "key": key, "model": chosen, "small_model": small, "window": str(choice.window)}
    table = _models_table(listed, chosen, small)
    env = {name: _render(value, values, table) for name, value in setup.env.items()}
    args = setup.args
    if chosen:
        texts = {**setup.model_env, **(setup.window_env if choice.window else {})}
        env |= {name: _fill(value, values) for name, value in texts.items()}
        env |= {variable: small if is_small(name) else chosen for name, variable in unserved if variable}
        args = (*args, *setup.model_args)
    unset = tuple(name for name in setup.unset if name not in env)
    return ChildSetup(env, tuple(_fill(word, values) for word in args), unset, chosen, tuple(listed))


def _render(value: Json, values: Mapping[str, str], table: Json) -> str:
    if isinstance(value, str):
        return _fill(value, values)
    return jsonio.encode(_fill_json(value, values, table)).decode()


def _fill_json(value: Json, values: Mapping[str, str], table: Json) -> Json:
    if isinstance(value, dict):
        return {name: _fill_json(item, values, table) for name, item in value.items()}
    if value == "{models}":
        return table
    return _fill(value, values) if isinstance(value, str) else value


def _fill(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)


def _models_table(listed: Sequence[ModelEntry], *chosen: str) -> Json:
    """Return the table of models in opencode's form: with limits only where both are known."""
    table: dict[str, Json] = {name: {"name": name} for name in chosen if name}
    for model in listed[:_MAX_LISTED]:
        entry: dict[str, Json] = {"name": model.name}
        if model.window and model.max_output_tokens:
            entry["limit"] = {"context": model.window, "output": model.max_output_tokens}
        table[model.name] = entry
    return table


# --- shell lines that make a client use a gateway. They contain no key, but shell code that reads it


KEY_PLACEHOLDER = "\x00the-key\x00"  # stands for the key until the line is quoted
_SHOWN = ("claude", "codex")


class SetupLine(Struct, frozen=True):
    """The shell line that makes one client use a gateway, as words that are quoted already."""

    name: str
    words: tuple[str, ...]
    hint: str = ""


def shell_key(config: Config, environ: Mapping[str, str]) -> str:
    """Return shell code that reads the gateway's key, so that the key appears in no history and on no screen.

    Return an empty string if a shell cannot read the key.
    """
    key = config.server.key
    if key is None:
        return f'"$(cat {_shell_path(app_folders(environ))})"'
    scheme, _, rest = key.shown.partition(":")
    match scheme:
        case "env":
            return f'"${rest}"'
        case "file" if not rest.startswith("~"):
            return f'"$(cat {shlex.quote(rest)})"'
        case "file":
            home, _, path = rest.partition("/")  # the shell expands ~ only outside quotes
            return f'"$(cat {home}/{shlex.quote(path)})"'
        case _:
            return ""


def _shell_path(folders: AppFolders) -> str:
    """Return the path of the key file for a shell, with ~ for the home folder, which makes it short."""
    file = folders.key_file
    if folders.home.parts[1:] and file.is_relative_to(folders.home):
        return f"~/{shlex.quote(str(file.relative_to(folders.home)))}"
    return shlex.quote(str(file))


def setup_lines(url: str, config: Config, environ: Mapping[str, str]) -> list[SetupLine]:
    """Return the lines for a gateway at this address."""
    key = shell_key(config, environ) or "YOUR_SERVER_KEY"
    served = registry.names()
    shown = [setup for setup in CLIENTS if setup.name in _SHOWN]
    return [_client(setup, url, key) for setup in (*shown, *(sdk for sdk in SDKS if sdk.dialect in served))]


def _client(setup: ClientSetup, url: str, key: str) -> SetupLine:
    """Return the line of one client: a client is started by it, an SDK reads the variables that it exports."""
    child_setup = fill_setup(setup, url=url, key=KEY_PLACEHOLDER, choice=ModelChoice())
    words = assignments(child_setup, key)
    if setup in SDKS:
        words = ["export", *words]
    else:
        unset = ["env", "-u", child_setup.unset[0]] if child_setup.unset else []
        words = [*unset, *words, setup.name, *map(shlex.quote, child_setup.args)]
    return SetupLine(setup.title, tuple(words), setup.note.replace("{url}", url))


def assignments(child_setup: ChildSetup, key: str) -> list[str]:
    """Return NAME=VALUE for a shell, each value quoted; `key` is shell code that replaces the placeholder."""
    return [
        f"{name}={key if value == KEY_PLACEHOLDER else shlex.quote(value)}" for name, value in child_setup.env.items()
    ]
