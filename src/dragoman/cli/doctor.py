"""`dragoman doctor`: what may be wrong, each with a remedy. It sends nothing but connection attempts."""

from __future__ import annotations

import os
import platform
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from dragoman._version import __version__
from dragoman.cli.doctor_checks import Check, CheckContext, run_checks
from dragoman.cli.terminal import Paint, one_line, replace_unencodable
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.secrets import app_folders
from dragoman.upstream.credentials import MASK
from dragoman.wire import jsonio

_FAILED = 3
_ACCOUNT = re.compile(r"(?<!\d)\d{12}(?!\d)")  # of AWS, in ARNs
_SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_MARKS = {"pass": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "red")}
_LEAST = 6  # characters of a value that is masked: a shorter one would mask common words


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="instead of DRAGOMAN_CONFIG and the usual place")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--share", action="store_true", help="fit to be pasted: every secret is masked, and your home")
    parser.add_argument("--offline", action="store_true", help="open no connections")


def run(arguments: Namespace) -> int:
    replace_unencodable(sys.stdout)
    context = CheckContext(os.environ, arguments.config, offline=arguments.offline)
    found = run_checks(context)
    shared = _shared(context) if arguments.share else None
    if shared is not None:
        found = [shared.check(each) for each in found]
    about = _about(context, shared) if shared is not None else {}
    if arguments.json:
        _print_json(found, about)
        return _status(found)
    _print(found)
    for name, value in about.items():
        print(f"\n{name}: {value}" if isinstance(value, str) else "\n" + "\n".join(map(str, value)))
    return _status(found)


def _status(found: Sequence[Check]) -> int:
    return _FAILED if any(each.state == "fail" for each in found) else 0


def _about(context: CheckContext, shared: _Shared) -> dict[str, str | list[str]]:
    """What whoever helps asks first."""
    system = f"dragoman {__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    return {"system": system, "configuration": shared.configuration(context)}


def _print(found: Sequence[Check]) -> None:
    paint = Paint(sys.stdout)
    longest = max(len(each.id) for each in found)
    for each in found:
        mark, style = _MARKS[each.state]
        print(f"{paint(mark, style)}  {each.id:<{longest}}  {one_line(each.what, 400)}")
        if each.remedy and each.state != "pass":
            print(f"{'':<{longest + 6}}  {paint('→', 'dim')} {one_line(each.remedy, 400)}")
    counts = {state: sum(each.state == state for each in found) for state in _MARKS}
    print(f"{counts['pass']} good, {counts['warn']} to look at, {counts['fail']} wrong", file=sys.stderr)


def _print_json(found: Sequence[Check], about: Mapping[str, object]) -> None:
    told = {"ok": not _status(found), "version": __version__, "checks": list(found), **about}
    print(jsonio.encode_pretty(told).decode())


# --- for others to read


class _Shared:
    """Masks what nobody else needs: secrets by value and by shape, accounts, who you are."""

    def __init__(self, secrets: Sequence[str], home: str) -> None:
        self._redactor = Redactor(lambda: secrets)
        self._home = home

    def text(self, text: str) -> str:
        text = _USER_IN_URL.sub(MASK, self._redactor.text(text))
        text = _ACCOUNT.sub(MASK, text)
        return text.replace(self._home, "~") if len(self._home) > 1 else text

    def check(self, check: Check) -> Check:
        return Check(check.id, check.state, self.text(check.what), self.text(check.remedy))

    def configuration(self, context: CheckContext) -> list[str]:
        from dragoman.gateway import show

        if context.loaded is None:
            return []
        said = [
            line for line in show.setting_lines(context.loaded.leaves) if line.origin.layer not in ("default", "preset")
        ]
        return [self.text(f"{line.key} = {show.toml_value(line.value)}  # {line.origin}") for line in said]


def _shared(context: CheckContext) -> _Shared:
    named = [value for name, value in context.environ.items() if _SECRET_VARIABLE.search(name)]
    found = [*context.secrets, *named]
    # The longest first: one may be the beginning of another.
    ordered = sorted({value for value in found if len(value) >= _LEAST}, key=len, reverse=True)
    return _Shared(ordered, str(app_folders(context.environ).home))
