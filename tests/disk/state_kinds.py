"""The kinds of state on disk: for each an endless writer, the real reader, and what both report."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import os
import signal
import sqlite3
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from dragoman.cli import init
from dragoman.errors import Fault, UpstreamFault
from dragoman.gateway import cooldown_file
from dragoman.gateway.breaker import CircuitBreaker, CooldownScope
from dragoman.gateway.config import build_config
from dragoman.gateway.explain import RecordedMessage, RefusalLog, RefusalReport, encode_report
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.model_lists import SavedModelList, read_model_list, write_model_list
from dragoman.gateway.secrets import load_or_create_key
from dragoman.http.client.client import HttpClient
from dragoman.upstream.credentials import CredentialFault, make_fetch
from dragoman.upstream.kiro.cli_store import CliStore
from dragoman.upstream.kiro.credential import KiroCredential
from dragoman.upstream.kiro.stores import IdeStore, OwnStore, TokenStore
from dragoman.upstream.kiro.token import Endpoints

Report: TypeAlias = Callable[[str], None]
SCOPES = 40
VARIABLES = ("MOONSHOT_API_KEY", "ANTHROPIC_API_KEY")
BODY = "x" * 100_000


@dataclass(frozen=True)
class StateKind:
    """One kind of state. `write` runs until it is killed and reports what is durable; `read` reports what a new process finds."""

    write: Callable[[Path, str, Report], None]
    read: Callable[[Path, str], str]
    write_once: Callable[[Path, str, Report], None]


# --- the gateway's key


def _create_keys(folder: Path, url: str, report: Report) -> None:
    path = folder / "state" / "key"
    while True:
        report(f"minted {load_or_create_key(path).reveal()}")
        report("removing")
        path.unlink()


def _create_key(folder: Path, url: str, report: Report) -> None:
    try:
        load_or_create_key(folder / "state" / "key")
    except ConfigError as error:
        report(str(error))


def _read_key(folder: Path, url: str) -> str:
    path = folder / "state" / "key"
    there = path.exists()
    return f"{'there' if there else 'made'} {load_or_create_key(path).reveal()}"


# --- cooldowns


def _failure(turn: int, index: int) -> tuple[CooldownScope, float, UpstreamFault]:
    fault = Fault("quota", f"turn {turn}", 429, retry_after=3600.0)
    return CooldownScope("upstream", f"credential {index}", ""), time.monotonic(), UpstreamFault("spent", fault=fault)


def _cool(folder: Path, url: str, report: Report) -> None:
    cooldown_file._SAVE_DELAY = 0.0  # write as often as possible

    async def work() -> None:
        breaker = CircuitBreaker()
        cooldown_file.CooldownFile(folder / "state", breaker).load()
        for turn in itertools.count():
            for index in range(SCOPES):
                breaker.note_failure(*_failure(turn, index))
            if (folder / "state" / cooldown_file.COOLDOWN_FILE).exists():
                report(f"turn {turn}")
            await asyncio.sleep(0.001)

    asyncio.run(work())


def _cool_once(folder: Path, url: str, report: Report) -> None:
    async def work() -> None:
        breaker = CircuitBreaker()
        saved = cooldown_file.CooldownFile(folder / "state", breaker)
        saved.load()
        breaker.note_failure(*_failure(0, 0))
        await saved.aclose()
        report("no problem")

    asyncio.run(work())


def _read_cooldowns(folder: Path, url: str) -> str:
    breaker = CircuitBreaker()
    cooldown_file.CooldownFile(folder / "state", breaker).load()
    return json.dumps([cooldown.why for cooldown in breaker.saved_cooldowns()])


# --- lists of models


def _list_of_turn(turn: int) -> SavedModelList:
    return SavedModelList("service", float(turn), [(f"turn-{turn}-{index}", turn, None) for index in range(SCOPES)])


def _list_models(folder: Path, url: str, report: Report) -> None:
    for turn in itertools.count():
        write_model_list(folder / "state" / "models" / "one.json", _list_of_turn(turn))
        report(f"turn {turn}")


def _list_models_once(folder: Path, url: str, report: Report) -> None:
    write_model_list(folder / "state" / "models" / "one.json", _list_of_turn(0))
    report("no problem")


def _read_models(folder: Path, url: str) -> str:
    found = read_model_list(folder / "state" / "models" / "one.json")
    whole = found is not None and found == _list_of_turn(int(found.at))
    return json.dumps(int(found.at) if found is not None and whole else None)


# --- the refusal log


def _refusal(turn: int) -> RefusalReport:
    message = RecordedMessage("POST /v1/messages", (("host", "here"),), f"{turn} {BODY}")
    return RefusalReport(
        f"req_{turn}", time.time(), "anthropic", "up", "kiro", "m", f"turn {turn}", message, message, message, (), ()
    )


def _keep(folder: Path, url: str, report: Report) -> None:
    refusal_log = RefusalLog(folder / "state" / "refusals")
    for turn in itertools.count(time.monotonic_ns()):
        assert refusal_log.write(f"req_{turn}", encode_report(_refusal(turn)))
        report(f"kept req_{turn}")


def _keep_once(folder: Path, url: str, report: Report) -> None:
    report(f"kept: {RefusalLog(folder / 'state' / 'refusals').write('req_0', encode_report(_refusal(0)))}")


def _read_refusals(folder: Path, url: str) -> str:
    refusal_log = RefusalLog(folder / "state" / "refusals")
    found = {identity: refusal_log.load(identity) for identity in refusal_log.ids()}
    whole = [
        identity
        for identity, each in found.items()
        if each is not None and each.response.body == f"{identity.removeprefix('req_')} {BODY}"
    ]
    return json.dumps([whole, len(found)])


# --- the configuration


def _initialise(folder: Path, report: Report | None) -> int:
    named = Namespace(config=folder / "config.toml", yes=True, only_print=False, force=True)
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        status = init.run(named)
    if report is not None:
        report(errors.getvalue())
    return status


def _initialise_for_ever(folder: Path, url: str, report: Report) -> None:
    os.environ["HOME"] = str(folder)
    for name in itertools.cycle(VARIABLES):
        for each in VARIABLES:
            os.environ.pop(each, None)
        os.environ[name] = "secret"
        assert _initialise(folder, None) == 0
        report(name)


def _initialise_once(folder: Path, url: str, report: Report) -> None:
    os.environ["HOME"] = str(folder)
    _initialise(folder, report)


def _read_configuration(folder: Path, url: str) -> str:
    path = folder / "config.toml"
    text = path.read_text()
    found = build_config(text, path, {"HOME": str(folder)}, {}).config.upstreams
    end = text.rstrip().endswith("# longest_answer = 32000")
    return json.dumps([*found, "whole" if end else "cut"])


# --- tokens


def store_of(kind: str, folder: Path) -> TokenStore:
    path = folder / "login" / "default.json"
    match kind:
        case "own":
            return OwnStore(path)
        case "ide":
            return IdeStore(path, folder / "login" / "profile.json")
        case _:
            return CliStore(folder / "login" / "data.sqlite3")


def write_login(kind: str, folder: Path, refresh: str) -> None:
    """Write an expired login, as `auth login` or another program does."""
    (folder / "login").mkdir(mode=0o700, exist_ok=True)
    document: dict[str, Any] = {"access_token": "old", "refresh_token": refresh, "expires_at": "2020-01-01T00:00:00Z"}
    document |= {"auth_method": "social", "region": "us-east-1", "padding": "p" * 20_000}
    if kind == "cli":
        with contextlib.closing(sqlite3.connect(folder / "login" / "data.sqlite3")) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS auth_kv (key TEXT PRIMARY KEY, value TEXT)")
            row = ("kirocli:social:token", json.dumps(document))
            database.execute("INSERT OR REPLACE INTO auth_kv VALUES (?, ?)", row)
        return
    path = folder / "login" / "default.json"
    path.write_text(json.dumps(document))
    path.chmod(0o600)


_BEGAN = time.time()  # set in the fork server: all writers share the clock


def _hasty(pace: float) -> Callable[[], float]:
    """Return a fast clock, in which a token of one hour expires at once."""
    return lambda: _BEGAN + (time.time() - _BEGAN) * pace


def _refresh(kind: str, pace: float) -> Callable[[Path, str, Report], None]:
    def write(folder: Path, url: str, report: Report) -> None:
        async def work() -> None:
            client, ending = HttpClient(), asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
            credential = KiroCredential(
                store_of(kind, folder),
                make_fetch(client, {}),
                endpoints=Endpoints.everything_at(url),
                now=_hasty(pace),
            )
            last = None
            while not ending.is_set():
                token = await credential.token()
                if token.access != last:
                    last = token.access
                    report(token.refresh.reveal())
                await asyncio.sleep(0.0005)
            await credential.aclose()

        asyncio.run(work())

    return write


def _refresh_once(kind: str) -> Callable[[Path, str, Report], None]:
    def write(folder: Path, url: str, report: Report) -> None:
        report(_renewed(kind, folder, url))

    return write


def _renewed(kind: str, folder: Path, url: str) -> str:
    async def work() -> str:
        client = HttpClient()
        credential = KiroCredential(
            store_of(kind, folder), make_fetch(client, {}), endpoints=Endpoints.everything_at(url), now=time.time
        )
        try:
            token = await credential.renew()
        except CredentialFault as fault:
            return f"fault: {fault}"
        finally:
            await credential.aclose()
            await client.aclose()
        return f"renewed {token.refresh.reveal()}"

    return asyncio.run(work())


def _read_token(kind: str) -> Callable[[Path, str], str]:
    """Return the content of the store, and whether a new process can continue with it."""

    def read(folder: Path, url: str) -> str:
        found = store_of(kind, folder).load().refresh.reveal()
        return json.dumps([found, _renewed(kind, folder, url)])

    return read


KINDS = {
    "key": StateKind(_create_keys, _read_key, _create_key),
    "cooldowns": StateKind(_cool, _read_cooldowns, _cool_once),
    "models": StateKind(_list_models, _read_models, _list_models_once),
    "explain": StateKind(_keep, _read_refusals, _keep_once),
    "config": StateKind(_initialise_for_ever, _read_configuration, _initialise_once),
} | {
    f"token-{kind}{name}": StateKind(_refresh(kind, pace), _read_token(kind), _refresh_once(kind))
    for kind in ("own", "ide", "cli")
    for name, pace in (("", 3e6), ("-shared", 3e4))  # a refresh at each read, or one every tenth of a second
}
