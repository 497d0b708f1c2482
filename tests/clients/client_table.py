"""The clients: one row each. To add one: pin it in pins/NAME, write its row here, and run `make test-clients CLIENTS=NAME`.

In texts, `$url`, `$key`, `$model` and `$prompt` stand for what the gateway gives out, `$home` for the client's own home
folder, `$place` for where it is installed. A word that begins with node_modules/ or venv/ is a path there; `*` is any name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

# The tool takes the text of token.txt, which no prompt names, to proof.txt, and gives it back.
SHELL = "tee proof.txt < token.txt"
COPY = {"source": "token.txt", "target": "proof.txt"}
UPSTREAMS = ("kiro", "anthropic", "openai", "bedrock", "responses", "gemini")


@dataclass(frozen=True, kw_only=True)
class Client:
    name: str
    version: str
    dialect: str  # what it speaks
    command: tuple[str, ...]
    pin: str = ""  # the folder of pins/; without one it comes with the suite
    tool: str = "copy"
    arguments: dict[str, object] = field(default_factory=lambda: dict(COPY))
    model: str = "claude-sonnet-4-5"
    stdin: str = ""
    environ: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # under $home
    loops: int = 1  # how many tool loops one run does
    calls: int = 2  # upstream calls of one loop
    results: int = 1  # how many of them carry the tool's result
    streams: str = "yes"
    warns: bool = True  # False: it must start without a warning
    upstreams: tuple[str, ...] = UPSTREAMS
    sets: tuple[str, ...] = ()  # `quick`: in `make test`; `ci`: in the continuous proof beside it

    words: str = ""  # instead of the order to call the tool, for a client without tools; `$token` is the token

    @property
    def prompt(self) -> str:
        return self.words or f"Call {self.tool} {json.dumps(self.arguments)}"


def _shell(name: str = "command", **more: object) -> dict[str, object]:
    return {name: SHELL, **more}


# --- programs

_CLAUDE_ENV = {
    "ANTHROPIC_BASE_URL": "$url",
    "ANTHROPIC_AUTH_TOKEN": "$key",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "IS_SANDBOX": "1",  # root may run it so
}
_CLAUDE = ("node_modules/@anthropic-ai/claude-code-*/claude", "-p", "$prompt", "--model", "$model")
_CODEX = """
model_provider = "dragoman"
model = "$model"
[model_providers.dragoman]
name = "Dragoman"
base_url = "$url/v1"
env_key = "DRAGOMAN_KEY"
wire_api = "{wire_api}"
[analytics]
enabled = false
"""
_CODEX_WEBSOCKET = _CODEX.format(wire_api="responses").replace("[analytics]", "supports_websockets = true\n[analytics]")
_CODEX_BUILT_IN = """
model = "$model"
openai_base_url = "$url/v1"
[analytics]
enabled = false
"""
# A provider with a command for its key reads the gateway's list of models.
_CODEX_LIST = (
    _CODEX.format(wire_api="responses")
    .replace('env_key = "DRAGOMAN_KEY"\n', "")
    .replace(
        "[analytics]", '[model_providers.dragoman.auth]\ncommand = "printenv"\nargs = ["DRAGOMAN_KEY"]\n[analytics]'
    )
)
_CODEX_RUN = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "$prompt")
_PATCH = (
    'const said = (await tools.exec_command({cmd: "cat token.txt"})).output.trim();'
    r"await tools.apply_patch(`*** Begin Patch\n*** Add File: proof.txt\n+${said}\n*** End Patch`); text(said)"
)
_OPENCODE = """{
  "autoupdate": false, "share": "disabled",
  "provider": {"dragoman": {"npm": "%s", "options": {"baseURL": "$url/v1", "apiKey": "$key"}, "models": {"$model": {}}}}
}"""
_AIDER = (
    *("--yes-always", "--no-git", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"),
    *("--edit-format", "diff", "--map-tokens", "0", "--no-pretty"),
)
_OPENCODE_ENV = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
_GOOSE_ENV = {"GOOSE_MODE": "auto", "GOOSE_DISABLE_KEYRING": "1", "GOOSE_TELEMETRY_ENABLED": "false"}
_GOOSE_FILES = {
    ".config/goose/config.yaml": "extensions:\n  developer: {enabled: true, type: platform, name: developer}\n"
}


def _claude(name: str, version: str, model: str = "claude-sonnet-4-5", *, pin: str = "", **more: object) -> Client:
    row: dict[str, object] = {
        "pin": pin or "claude",
        "dialect": "anthropic",
        "command": (*_CLAUDE, "--allowedTools", "Bash"),
        "tool": "Bash",
        "arguments": _shell(description="prove it"),
        "environ": _CLAUDE_ENV,
        "sets": ("ci",),
        **more,
    }
    return Client(name=name, version=version, model=model, **row)  # type: ignore[arg-type]


def _codex(name: str, wire_api: str = "responses", **more: object) -> Client:
    row: dict[str, object] = {
        "version": "0.169.0",
        "pin": "codex",
        "dialect": "responses",
        "command": ("node_modules/@openai/codex-*/vendor/*/bin/codex", *_CODEX_RUN),
        "model": "gpt-5",
        "tool": "exec_command",
        "arguments": _shell("cmd"),
        "files": {".codex/config.toml": _CODEX.format(wire_api=wire_api)},
        "environ": {"DRAGOMAN_KEY": "$key"},
        **more,
    }
    return Client(name=name, **row)  # type: ignore[arg-type]


def _opencode(provider: str, npm: str, **more: object) -> Client:
    row: dict[str, object] = {
        "pin": "opencode",
        "version": "1.18.34",
        "command": ("node_modules/opencode-*/bin/opencode", "run", "--model", "dragoman/$model"),
        "stdin": "$prompt",  # it quotes the words of its command line
        "tool": "bash",
        "arguments": _shell(description="prove it"),
        "files": {".config/opencode/opencode.json": _OPENCODE % npm},
        "environ": _OPENCODE_ENV,
        "calls": 3,  # one is for the title
        "sets": ("ci",),
        **more,
    }
    return Client(name=f"opencode {provider}", dialect=provider, **row)  # type: ignore[arg-type]


_PROGRAMS = (
    _claude("claude-2.1.197", "2.1.197", pin="claude-2.1.197", sets=("quick",)),
    _claude("claude", "2.1.327"),
    _claude("claude opus", "2.1.327", "claude-opus-5-5"),  # adaptive thinking, output_config, role: system
    _claude("claude gpt-5", "2.1.327", "gpt-5"),
    _claude(
        "claude bedrock",
        "2.1.327",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        dialect="bedrock.invoke",
        environ={
            **_CLAUDE_ENV,
            "CLAUDE_CODE_USE_BEDROCK": "1",
            "ANTHROPIC_BEDROCK_BASE_URL": "$url",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "anybody",
            "AWS_SECRET_ACCESS_KEY": "$key",
        },
        calls=4,  # it asks both of its default models for one token first
        sets=(),
    ),
    _codex("codex", sets=("ci",)),
    # Left to itself it asks for a model that gets its tools in an input item, and only one of them: JavaScript.
    _codex(
        "codex default",
        model="gpt-6.1-sol",
        tool="functions__exec",
        arguments={"input": f"text(await tools.exec_command({{cmd: {json.dumps(SHELL)}}}))"},
        sets=("ci",),
    ),
    _codex(
        "codex apply_patch",
        model="gpt-6.1-sol",
        tool="functions__exec",
        arguments={"input": _PATCH},
        upstreams=("kiro", "openai"),
    ),
    # Over one WebSocket: by the setting of a provider, and by its own provider, which offers it first.
    _codex(
        "codex websocket",
        files={".codex/config.toml": _CODEX_WEBSOCKET},
        command=("node_modules/@openai/codex-*/vendor/*/bin/codex", *_CODEX_RUN),
        streams="WebSocket",
        sets=("ci",),
    ),
    _codex(
        "codex built-in provider",
        files={".codex/config.toml": _CODEX_BUILT_IN},
        environ={"OPENAI_API_KEY": "$key", "CODEX_API_KEY": "$key"},
        streams="WebSocket",
    ),
    _codex(
        "codex list of models",
        model="sim-model",
        files={".codex/config.toml": _CODEX_LIST},
        warns=False,
        upstreams=("openai",),
        sets=("ci",),
    ),
    # After the tool call the history is too long: its own provider asks for a compaction, and goes on with the summary.
    _codex(
        "codex compaction",
        files={".codex/config.toml": f"model_auto_compact_token_limit = 1500{_CODEX_BUILT_IN}"},
        environ={"OPENAI_API_KEY": "$key", "CODEX_API_KEY": "$key"},
        calls=3,
        results=2,
        streams="WebSocket",
        sets=("ci",),
    ),
    _codex(
        "codex-chat",
        "chat",
        version="0.80.0",
        pin="codex-chat",
        dialect="openai",
        command=("node_modules/@openai/codex/vendor/x86_64-unknown-linux-musl/codex/codex", *_CODEX_RUN),
        tool="shell",
        arguments={"command": ["bash", "-c", SHELL]},
    ),
    _opencode("anthropic", "@ai-sdk/anthropic"),
    _opencode("openai", "@ai-sdk/openai-compatible"),
    _opencode("responses", "@ai-sdk/openai"),
    Client(
        name="gemini",
        version="0.61.0",
        pin="gemini",
        dialect="gemini",
        command=("node_modules/.bin/gemini", "--yolo", "--model", "$model", "--prompt", "$prompt"),
        model="gemini-2.5-pro",
        tool="run_shell_command",
        arguments=_shell(description="prove it"),
        environ={
            "GEMINI_API_KEY": "$key",
            "GOOGLE_GEMINI_BASE_URL": "$url",
            "GEMINI_TELEMETRY_ENABLED": "false",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
        files={
            ".gemini/settings.json": json.dumps(
                {
                    "security": {"auth": {"selectedType": "gemini-api-key"}},
                    "privacy": {"usageStatisticsEnabled": False},
                    "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
                    "telemetry": {"enabled": False},
                }
            )
        },
        sets=("ci",),
    ),
    Client(
        name="goose anthropic",
        version="1.52.0",
        pin="goose",
        dialect="anthropic",
        command=("node_modules/@aaif/goose-binary-*/bin/goose", "run", "--text", "$prompt"),
        tool="shell",
        arguments=_shell(),
        environ={
            "GOOSE_PROVIDER": "anthropic",
            "GOOSE_MODEL": "$model",
            "ANTHROPIC_HOST": "$url",
            "ANTHROPIC_API_KEY": "$key",
            **_GOOSE_ENV,
        },
        files=_GOOSE_FILES,
        calls=3,  # one is for the session's name
        sets=("ci",),
    ),
    Client(
        name="qwen",
        version="0.24.4",
        pin="qwen",
        dialect="openai",
        command=(
            "node_modules/.bin/qwen",
            "--yolo",
            "--auth-type",
            "openai",
            "--model",
            "$model",
            "--prompt",
            "$prompt",
        ),
        tool="run_shell_command",
        arguments=_shell(is_background=False, description="prove it"),
        environ={"OPENAI_BASE_URL": "$url/v1", "OPENAI_API_KEY": "$key", "OPENAI_MODEL": "$model"},
        files={
            ".qwen/settings.json": json.dumps(
                {
                    "privacy": {"usageStatisticsEnabled": False},
                    "telemetry": {"enabled": False},
                    "general": {"disableAutoUpdate": True},
                }
            )
        },
    ),
    # It has no tools: it edits files as the reply says, and the simulated model repeats its prompt.
    Client(
        name="aider",
        version="0.86.2",
        pin="aider",
        dialect="openai",
        command=("venv/bin/aider", "--model", "openai/$model", *_AIDER, "--message", "$prompt"),
        words="Please:\n\nproof.txt\n```\n<<<<<<< SEARCH\n=======\n$token\n>>>>>>> REPLACE\n```\n",
        environ={"OPENAI_API_BASE": "$url/v1", "OPENAI_API_KEY": "$key", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        calls=1,
    ),
)


def _by_run(name: str, *arguments: str, **more: object) -> Client:
    """Return a client started by `dragoman run`, which alone sets its address; `arguments` are the client's."""
    [client] = [each for each in _PROGRAMS if each.name == name]
    ours = (sys.executable, "-m", "dragoman", "run", "--config", "$home/dragoman.toml", "--model", "$model")
    row: dict[str, object] = {
        "name": f"{client.name.split()[0]} by run",
        "command": (*ours, client.command[0], "--", *arguments),
        "environ": {},
        "files": {},
        **more,
    }
    return replace(client, **row)  # type: ignore[arg-type]


_QUIET = {name: value for name, value in _CLAUDE_ENV.items() if not name.startswith("ANTHROPIC_")}
PROGRAMS = (
    *_PROGRAMS,
    _by_run("claude", "-p", "$prompt", "--allowedTools", "Bash", environ=_QUIET),
    _by_run("codex", *_CODEX_RUN, warns=False),
    # Codex does not know this model itself: it gets a catalogue.
    replace(
        _by_run("codex", *_CODEX_RUN, model="claude-sonnet-4-5", warns=False, sets=("ci",)),
        name="codex catalogue by run",
    ),
    _by_run("opencode anthropic", "run", environ=_OPENCODE_ENV),
    _by_run("gemini", "--yolo", "--prompt", "$prompt", environ={"GEMINI_CLI_TRUST_WORKSPACE": "true"}, model="m"),
    _by_run("qwen", "--yolo", "--prompt", "$prompt"),
    _by_run("aider", *_AIDER, "--message", "$prompt", environ={"LITELLM_LOCAL_MODEL_COST_MAP": "True"}),
    _by_run("goose anthropic", "run", "--text", "$prompt", environ=_GOOSE_ENV, files=_GOOSE_FILES),
)

# --- libraries


def _library(
    name: str, version: str, command: tuple[str, ...], modes: dict[str, str], pin: str, sets: tuple[str, ...] = ("ci",)
) -> list[Client]:
    """A row for each mode of a library; each does one loop streamed and one whole."""
    return [
        Client(
            name=f"{name} {mode}".strip(),
            version=version,
            pin=pin,
            dialect=dialect,
            command=(*command, *([mode] if mode else []), "stream", "whole"),
            loops=2,
            streams="both",
            sets=sets,
            environ={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )
        for mode, dialect in modes.items()
    ]


def _python(module: str) -> tuple[str, ...]:
    return ("venv/bin/python", "-m", f"tests.clients.loops.{module}")


_SUITE = (sys.executable, "-m", "tests.clients.loops.sdks")
_NODE = ("node", "$place/tests/sdk/node/loop.mjs")
_OPENAI = {"chat": "openai", "responses": "responses"}
_QUICK = ("quick",)
_ALL = {"anthropic": "anthropic", "chat": "openai", "responses": "responses"}

LIBRARIES = (
    *_library("anthropic-py", "2.8.0", _SUITE, {"anthropic": "anthropic"}, "", _QUICK),
    *_library("openai-py", "3.49.0", _SUITE, _OPENAI, "", _QUICK),
    *_library("boto3", "1.44.0", _SUITE, {"boto3": "bedrock"}, "", _QUICK),
    *_library("anthropic-node", "1.8.0", _NODE, {"anthropic": "anthropic"}, "", _QUICK),
    *_library("openai-node", "7.53.0", _NODE, _OPENAI, "", _QUICK),
    *_library("ai-sdk", "6.0.326", ("node", "$place/ai-sdk.mjs"), {**_ALL, "google": "gemini"}, "ai-sdk"),
    *_library(
        "ai-sdk-7",
        "7.0.169",
        ("node_modules/node-*/bin/node", "$place/ai-sdk.mjs"),
        {**_ALL, "google": "gemini"},
        "ai-sdk-7",
        (),
    ),
    *_library("langchain", "1.4.7", _python("langchain"), {**_ALL, "bedrock": "bedrock"}, "langchain"),
    *_library(
        "pydantic-ai",
        "2.66.0",
        _python("pydantic_ai"),
        {**_ALL, "bedrock": "bedrock", "google": "gemini"},
        "pydantic-ai",
    ),
    *_library("litellm", "1.106.2", _python("litellm"), {"anthropic": "anthropic", "openai": "openai"}, "litellm", ()),
    *_library("google-genai", "3.1.0", _python("google_genai"), {"": "gemini"}, "google-genai"),
)

CLIENTS = (*LIBRARIES, *PROGRAMS)


def select_clients(names: Iterable[str]) -> list[Client]:
    """Return the clients of these names, pins or sets. Raises KeyError for an unknown name."""
    found: list[Client] = []
    for name in names:
        some = [each for each in CLIENTS if name in ("all", each.name, each.pin, each.name.split()[0], *each.sets)]
        if not some:
            raise KeyError(f"no client is called {name!r}")
        found += [each for each in some if each not in found]
    return found
