"""`dragoman doctor`: run the checks of `doctor_checks` and print the results, each failure with a remedy.

It opens connections to upstreams (unless --offline) and sends no request.
"""

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
from dragoman.cli.layout import count_of
from dragoman.cli.terminal import Paint, notice_if_slow, one_line, replace_unencodable, say
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.secrets import app_folders
from dragoman.upstream.credentials import MASK
from dragoman.wire import jsonio

_FAILED = 3
_ACCOUNT = re.compile(r"(?<!\d)\d{12}(?!\d)")  # an AWS account, as in ARNs
_SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_MARKS = {"pass": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "red")}
_SHORTEST_MASKED = 6  # characters: masking a shorter value would mask common words


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman doctor`."""
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="the configuration (default: DRAGOMAN_CONFIG, then the usual place)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--share", action="store_true", help="mask secrets, accounts and your home folder, to paste the output"
    )
    parser.add_argument("--offline", action="store_true", help="make no network connection")


def run(arguments: Namespace) -> int:
    """Run `dragoman doctor`; return the exit status."""
    replace_unencodable(sys.stdout)
    context = CheckContext(os.environ, arguments.config, offline=arguments.offline)
    with notice_if_slow("checking the connections to upstreams"):
        checks = run_checks(context)
    masking = _masking(context) if arguments.share else None
    if masking is not None:
        checks = [masking.check(each) for each in checks]
    about = _about(context, masking) if masking is not None else {}
    if arguments.json:
        _print_json(checks, about)
        return _status(checks)
    _print(checks)
    for name, value in about.items():
        print(f"\n{name}: {value}" if isinstance(value, str) else "\n" + "\n".join(map(str, value)))
    return _status(checks)


def _status(checks: Sequence[Check]) -> int:
    return _FAILED if any(each.state == "fail" for each in checks) else 0


def _about(context: CheckContext, masking: _Masking) -> dict[str, str | list[str]]:
    """Return the facts that a bug report needs: versions and the configuration."""
    system = f"dragoman {__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    return {"system": system, "configuration": masking.configuration(context)}


def _print(checks: Sequence[Check]) -> None:
    paint = Paint(sys.stdout)
    longest = max(len(each.id) for each in checks)
    rest = " " * (longest + 8)
    for each in checks:
        mark, style = _MARKS[each.state]
        say(f"{paint(mark, style)}  {each.id:<{longest}}  {one_line(each.what, 400)}", rest=rest)
        if each.remedy and each.state != "pass":
            say(f"{rest}{paint('→', 'dim')} {one_line(each.remedy, 400)}", rest="  ")
    counts = {state: sum(each.state == state for each in checks) for state in _MARKS}
    say(f"{counts['pass']} passed, {count_of(counts['warn'], 'warning')}, {counts['fail']} failed", sys.stderr)


def _print_json(checks: Sequence[Check], about: Mapping[str, object]) -> None:
    document = {"ok": not _status(checks), "version": __version__, "checks": list(checks), **about}
    print(jsonio.encode_pretty(document).decode())


# --- output that can be shared


class _Masking:
    """Masks secrets (by value and by pattern), AWS accounts, user names in URLs and the home folder."""

    def __init__(self, secrets: Sequence[str], home: str) -> None:
        self._redactor = Redactor(lambda: secrets)
        self._home = home

    def text(self, text: str) -> str:
        """Return a text with everything private masked."""
        text = _USER_IN_URL.sub(MASK, self._redactor.text(text))
        text = _ACCOUNT.sub(MASK, text)
        return text.replace(self._home, "~") if len(self._home) > 1 else text

    def check(self, check: Check) -> Check:
        """Return a check with its texts masked."""
        return Check(check.id, check.state, self.text(check.what), self.text(check.remedy))

    def configuration(self, context: CheckContext) -> list[str]:
        """Return the settings that differ from the defaults, masked, one a line."""
        from dragoman.gateway import show

        if context.loaded is None:
            return []
        configured = [
            line for line in show.setting_lines(context.loaded.leaves) if line.origin.layer not in ("default", "preset")
        ]
        return [self.text(f"{line.key} = {show.toml_value(line.value)}  # {line.origin}") for line in configured]


def _masking(context: CheckContext) -> _Masking:
    named = [value for name, value in context.environ.items() if _SECRET_VARIABLE.search(name)]
    secrets = [*context.secrets, *named]
    # The longest value first, because one value may be the beginning of another.
    ordered = sorted({value for value in secrets if len(value) >= _SHORTEST_MASKED}, key=len, reverse=True)
    return _Masking(ordered, str(app_folders(context.environ).home))
