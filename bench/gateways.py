"""The command lines and configurations of Dragoman and its peers: those of a usual installation, without tuning."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.scenarios import LITELLM, ROUTER, TENSORZERO

KEY = "bench-key-0123456789abcdef0123456789"
ROOT = Path(__file__).parent.parent
PEERS = Path(os.environ.get("DRAGOMAN_PEERS") or ROOT / "build" / "peers")
LITELLM_VERSION, TENSORZERO_VERSION, ROUTER_VERSION = "1.108.4", "2026.6.0", "2.0.0"
ROUTER_PACKAGE = "@musistudio/claude-code-router"
PLAIN = ("whole", "stream", "call", "paced", "held")  # upstreams that every gateway supports
PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}


@dataclass(frozen=True)
class Launch:
    """How to start a gateway. `port` is 0 if only the gateway's log shows the port.

    `model` returns the gateway's name of the model for the name of an upstream.
    """

    command: list[str]
    env: dict[str, str]
    port: int
    paths: Mapping[str, str]
    headers: Mapping[str, Mapping[str, str]]
    model: Callable[[str], str]
    cores: int = 1


HEADERS = {
    "openai": {"authorization": f"Bearer {KEY}"},
    "anthropic": {"x-api-key": KEY, "anthropic-version": "2023-06-01"},
}


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- Dragoman

_DIALECTS = {"anthropic": "anthropic", "kiro": "kiro", "bedrock": "bedrock"}


def dragoman(
    folder: Path, ports: Mapping[str, int], *, workers: int = 1, few: bool = False, settings: str = "", key: str = KEY
) -> Launch:
    """Return how to start Dragoman with these additional settings; clients use `key`.

    With `few`, it has only the upstreams that the peers have too.
    """
    port = free_port()
    file = _dragoman_config(folder, ports, few=few)
    file.write_text(settings.replace("{folder}", str(folder)) + file.read_text())
    command = [sys.executable, "-m", "dragoman", "serve", "--config", str(file), "--port", str(port), "--quiet"]
    if workers > 1:
        command += ["--workers", str(workers)]
    env = {"BENCH_KEY": KEY, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    headers = {
        dialect: {name: value.replace(KEY, key) for name, value in each.items()} for dialect, each in HEADERS.items()
    }
    return Launch(command, env, port, PATHS, headers, lambda name: name, workers)


def _dragoman_config(folder: Path, ports: Mapping[str, int], *, few: bool = False) -> Path:
    lines = ["[server]", 'key = "env:BENCH_KEY"', "drain = 1"]
    for kind, port in ports.items():
        if few and kind not in PLAIN:
            continue
        settings = {"dialect": _DIALECTS.get(kind, "openai"), "base_url": f"http://127.0.0.1:{port}"}
        lines += _upstream(kind, settings, {"raw_tools": "auto"} if kind.startswith("kimi") else {})
        if settings["dialect"] == "openai" and not few:
            lines += _upstream(f"{kind}-read", settings, {"repair": True})
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "dragoman.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


def _upstream(name: str, settings: Mapping[str, str], translation: Mapping[str, object]) -> list[str]:
    table = f"upstreams.{name}"
    return [
        f"[{table}]",
        *(f'{key} = "{value}"' for key, value in settings.items()),
        'key = "env:BENCH_KEY"',
        f'models = ["{name}"]',
        f"[{table}.limits]",
        "concurrency = 2048",
        f"[{table}.translation]",
        *(f"{key} = {json.dumps(value)}" for key, value in translation.items()),
    ]


def has_workers() -> bool:
    """Return whether this Dragoman has `serve --workers`."""
    done = subprocess.run([sys.executable, "-m", "dragoman", "serve", "--help"], capture_output=True, check=False)
    return b"--workers" in done.stdout


# --- peers


def tensorzero(folder: Path, ports: Mapping[str, int]) -> Launch:
    """Return how to start TensorZero. Its wheel contains the whole gateway, started as its OpenAI patch starts it."""
    lines = ["[gateway]", "observability.enabled = false"]
    for kind in PLAIN:
        lines += [
            f'[models."{kind}"]',
            'routing = ["up"]',
            f'[models."{kind}".providers.up]',
            'type = "openai"',
            f'api_base = "http://127.0.0.1:{ports[kind]}/v1/"',
            f'model_name = "{kind}"',
            'api_key_location = "env::BENCH_KEY"',
        ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tensorzero.toml").write_text("\n".join(lines) + "\n")
    starter = folder / "start.py"
    starter.write_text(_TENSORZERO_START)
    command = [str(PEERS / TENSORZERO / "bin" / "python"), str(starter), str(folder / "tensorzero.toml")]
    paths = {"openai": "/openai/v1/chat/completions"}
    env = {"BENCH_KEY": KEY, "HOME": str(folder)}
    return Launch(command, env, 0, paths, HEADERS, lambda name: f"tensorzero::model_name::{name}")


_TENSORZERO_START = """\
import sys, threading
import tensorzero.tensorzero as gateway

running = gateway._start_http_gateway(
    config_file=sys.argv[1], clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False
)
print(running.base_url, flush=True)
threading.Event().wait()
"""


def claude_code_router(folder: Path, ports: Mapping[str, int]) -> Launch:
    """Return how to start claude-code-router."""
    port = free_port()
    home = folder / ".claude-code-router"
    home.mkdir(parents=True, exist_ok=True)
    providers = [
        {
            "name": kind,
            "api_base_url": f"http://127.0.0.1:{ports[kind]}/v1/chat/completions",
            "api_key": KEY,
            "models": ["bench"],
        }
        for kind in PLAIN
    ]
    config = {
        "PORT": port,
        "APIKEY": KEY,
        "LOG": False,
        "NON_INTERACTIVE_MODE": True,
        "Providers": providers,
        "Router": {"default": "call,bench"},
    }
    (home / "config.json").write_text(json.dumps(config))
    script = PEERS / ROUTER / "node_modules" / ROUTER_PACKAGE / "dist" / "cli.js"
    paths = {"anthropic": PATHS["anthropic"]}
    command = [shutil.which("node") or "node", str(script), "start"]
    return Launch(command, {"HOME": str(folder)}, port, paths, HEADERS, lambda name: f"{name},bench")


def litellm(folder: Path, ports: Mapping[str, int]) -> Launch:
    """Return how to start LiteLLM with `hosted_vllm/` upstreams, which cost less CPU than `openai/` ones."""
    port = free_port()
    models = [
        {
            "model_name": kind,
            "litellm_params": {
                "model": f"hosted_vllm/{kind}",
                "api_base": f"http://127.0.0.1:{ports[kind]}/v1",
                "api_key": KEY,
            },
        }
        for kind in PLAIN
    ]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "litellm.yaml"  # JSON is YAML
    file.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": KEY}}))
    command = [str(PEERS / LITELLM / "bin" / "litellm"), "--config", str(file), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--telemetry", "False"]
    env = {"HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    env["PATH"] = f"{PEERS / LITELLM / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    return Launch(command, env, port, PATHS, HEADERS, lambda name: name)


MAKERS: dict[str, Callable[[Path, Mapping[str, int]], Launch]] = {
    TENSORZERO: tensorzero,
    ROUTER: claude_code_router,
    LITELLM: litellm,
}
VERSIONS = {TENSORZERO: TENSORZERO_VERSION, ROUTER: ROUTER_VERSION, LITELLM: LITELLM_VERSION}


def installed(peer: str) -> bool:
    """Return whether `make bench-peers` has installed the peer."""
    return (PEERS / peer / ".installed").exists()
