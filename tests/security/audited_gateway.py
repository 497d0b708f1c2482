"""A gateway process with an audit hook, started by test_routes.py. Prints the recorded events as JSON."""

from __future__ import annotations

import http.client
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

SEEN: list[tuple[str, str]] = []
STARTS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
    "os.startfile",
    "ctypes.dlopen",
    "code.__new__",
    "compile",
    "exec",
    "import",
    "pickle.find_class",
    "urllib.Request",
    "webbrowser.open",
    "ftplib.connect",
    "smtplib.connect",
)
ACTS = ("os.remove", "os.rename", "os.mkdir", "os.symlink", "os.link", "os.chmod", "shutil.rmtree")
armed = False


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        place = arguments[1] if event in ("socket.connect", "socket.sendto") else arguments[:2]
        SEEN.append((event, str(place)))
    elif not armed:
        return
    elif event in STARTS or event in ACTS:
        SEEN.append((event, str(arguments[:2])[:200]))
    elif event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        SEEN.append((event, str(arguments[0])))


def main(url: str, state: str) -> None:
    global armed  # noqa: PLW0603
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # audit hooks do not see the connections of uvloop
    sys.addaudithook(watch)
    from dragoman.gateway.access_log import AccessLog
    from dragoman.gateway.config import build_config
    from dragoman.gateway.redaction import Redactor
    from dragoman.gateway.serve import running_gateway
    from tests.gateway.harness import KEY
    from tests.security.routes import ABSENT, DATA

    text = f'allow_literal_secrets = true\n[upstreams.one]\ndialect = "anthropic"\nbase_url = "{url}"\nkey = "the-upstream-secret"\nlimits.breaker = false\n'
    config = build_config(text, None, {"HOME": "/nowhere"}, {"server.port": 0, "server.drain": 1}).config
    access_log = AccessLog(Redactor(), stream=io.StringIO(), form="json", level="debug")
    with running_gateway(config, state=Path(state), access_log=access_log, key=KEY) as running:
        place = running.url.removeprefix("http://")

        def ask(method: str, path: str, body: Any, **headers: str) -> int:
            connection = http.client.HTTPConnection(place, timeout=60)
            raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
            connection.request(method, path, raw, {"x-api-key": KEY, **headers})
            response = connection.getresponse()
            response.read()
            connection.close()
            return response.status

        ask("GET", "/readyz", None)
        at_start = [seen for seen in SEEN if place.partition(":")[2] not in seen[1]]
        for method, path, body in DATA:  # trigger lazy imports first
            ask(method, path, body)
            ask(method, path, b"{no json" if body else None)
        ask("GET", "/nothing", None)
        SEEN.clear()
        armed = True
        for method, path, body in DATA:
            ask(method, path, body)
            for name, value in hostile(path):
                ask(
                    method, path, {**body, name: value} if body is not None else None, **{f"x-{name}": str(value)[:200]}
                )
                ask(method, f"{path}?{name}=http%3A%2F%2F203.0.113.9%2F", body)
        for path in ABSENT:
            ask("POST", path, {"command": "touch /tmp/owned", "args": ["-c", "id"], "template": "{{7*7}}"})
        armed = False
        modules = sorted(name.partition(".")[0] for name in sys.modules)
    print(json.dumps({"at_start": at_start, "seen": SEEN, "place": place, "modules": modules}))


def hostile(path: str) -> list[tuple[str, Any]]:
    return [
        ("api_base", "http://203.0.113.9/"),
        ("base_url", "http://203.0.113.9/"),
        ("host", "203.0.113.9"),
        ("command", ["/bin/sh", "-c", "id"]),
        ("mcp_servers", [{"type": "stdio", "command": "/bin/sh", "args": ["-c", "id"], "name": "x"}]),
        ("prompt_template", "{{ ''.__class__.__mro__ }}"),
        ("guardrails", "__import__('os').system('id')"),
        ("file", "/etc/passwd"),
        ("output_path", "/tmp/owned"),
        ("image_url", {"url": "http://203.0.113.9/a.png"}),
        ("plugins", ["os:system"]),
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
