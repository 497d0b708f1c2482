"""`dragoman completion bash|zsh|fish`: print a script that lets a shell complete commands, options and their values.

The scripts are short: at each TAB they call `dragoman completion SHELL WORD…` with the words of the line up to the
cursor, from the name of the program on, and get the candidates for the last one. So all shells offer the same, and
always that of the installed version. Where there is no candidate, the shell completes file names.
"""

from __future__ import annotations

import os
from argparse import REMAINDER, SUPPRESS, Action, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable

from dragoman.cli import COMMANDS, make_parser
from dragoman.cli.terminal import CommandError, one_line
from dragoman.errors import DragomanError

_BASH_SCRIPT = """\
# Completion of dragoman for bash. Load it with: eval "$(dragoman completion bash)"
_dragoman() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]/#\\~/$HOME}" completion bash "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null))
}
complete -o default -F _dragoman dragoman
"""
_ZSH_SCRIPT = """\
#compdef dragoman
# Completion of dragoman for zsh. Load it after compinit with: eval "$(dragoman completion zsh)"
_dragoman() {
    local -a candidates
    candidates=("${(@f)$("${words[1]/#\\~/$HOME}" completion zsh "${(@)words[1,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$candidates" ]]; then
        _describe dragoman candidates
    else
        _files
    fi
}
if [[ "$funcstack[1]" == _dragoman ]]; then
    _dragoman "$@"
else
    compdef _dragoman dragoman
fi
"""
_FISH_SCRIPT = """\
# Completion of dragoman for fish. Load it with: dragoman completion fish | source
function __dragoman_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l candidates ($words[1] completion fish $words 2>/dev/null)
    if test (count $candidates) -gt 0
        printf '%s\\n' $candidates
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c dragoman -f -a '(__dragoman_complete)'
"""
_SCRIPTS = {"bash": _BASH_SCRIPT, "zsh": _ZSH_SCRIPT, "fish": _FISH_SCRIPT}

_GLOBAL_OPTIONS = {"--help": "list the commands", "--version": "print the version"}
_LONGEST = 80  # characters of a description

Candidates = dict[str, str]  # what may be written, and its description

_MAX_WAIT = 0.8  # seconds for the gateway: a user waits after Tab, and a notice would disturb the line


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman completion`."""
    parser.usage = "dragoman completion bash|zsh|fish"
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="the shell that the script is for")
    parser.add_argument("words", nargs=REMAINDER, help=SUPPRESS)  # from the scripts


def run(arguments: Namespace) -> int:
    """Run `dragoman completion`; return the exit status."""
    if not arguments.words:
        print(_SCRIPTS[arguments.shell], end="")
        return 0
    for value, description in complete(arguments.words).items():
        print(_render(arguments.shell, value, one_line(description, _LONGEST)))
    return 0


def _render(shell: str, value: str, description: str) -> str:
    if shell == "bash":
        return value
    if shell == "fish":
        return f"{value}\t{description}"
    quoted = value.replace("\\", "\\\\").replace(":", "\\:")  # _describe separates the two with a colon
    return f"{quoted}:{description}" if description else quoted


def complete(words: list[str]) -> Candidates:
    """Return the candidates for the last word of a line; the words before it are complete."""
    *before, last = words
    before, last = [word for word in before if word != "="], last.removeprefix("=")  # bash splits words at `=`
    if len(before) < 2:
        return _matching(last, _GLOBAL_OPTIONS if last.startswith("-") else COMMANDS)
    if before[1] not in COMMANDS:
        return {}
    parser, _ = make_parser(before[1])
    line = _Line(parser)
    for word in before[2:]:
        line.read(word)
    return line.candidates(last)


def _matching(start: str, candidates: Candidates, prefix: str = "") -> Candidates:
    return {prefix + value: description for value, description in candidates.items() if value.startswith(start)}


class _Line:
    """Reads the words of a command line as argparse would, to find what the next word may be."""

    def __init__(self, parser: ArgumentParser) -> None:
        self._enter(parser)

    def _enter(self, parser: ArgumentParser) -> None:
        # argparse has no public list of what a parser accepts.
        actions = [action for action in parser._actions if action.help != SUPPRESS]
        self._options = {name: action for action in actions for name in action.option_strings}
        self._positionals = [action for action in actions if not action.option_strings]
        self._valued: Action | None = None  # an option whose value is the next word
        self._only_positionals = False  # after `--`, or in the arguments of another program

    def read(self, word: str) -> None:
        """Read a complete word."""
        if self._valued is not None:
            self._valued = None
        elif word == "--":
            self._only_positionals = True
        elif word.startswith("-") and len(word) > 1 and not self._only_positionals:
            name, equals, _ = word.partition("=")
            option = self._options.get(name)
            self._valued = option if option is not None and option.nargs != 0 and not equals else None
        elif self._positionals:
            self._read_positional(self._positionals[0], word)

    def _read_positional(self, action: Action, word: str) -> None:
        if isinstance(action, _SubParsersAction):
            if word in action.choices:
                self._enter(action.choices[word])
        elif action.nargs in (None, "?"):
            self._positionals.pop(0)
            rest = self._positionals[0] if self._positionals else None
            self._only_positionals = rest is not None and rest.nargs == REMAINDER

    def candidates(self, last: str) -> Candidates:
        """Return the candidates for the word that is being written."""
        if self._valued is not None:
            return _matching(last, _values(self._valued))
        if last.startswith("-") and not self._only_positionals:
            name, equals, value = last.partition("=")
            if not equals:
                return _matching(last, self._described_options())
            option = self._options.get(name)
            return _matching(value, _values(option), f"{name}=") if option is not None else {}
        if self._positionals:
            return _matching(last, _values(self._positionals[0]))
        return {} if last or self._only_positionals else self._described_options()

    def _described_options(self) -> Candidates:
        return {name: action.help or "" for name, action in self._options.items()}


# --- the values of options and positionals


def _values(action: Action) -> Candidates:
    if isinstance(action, _SubParsersAction):
        return {choice.dest: choice.help or "" for choice in action._choices_actions}
    if action.choices is not None:
        return dict.fromkeys(map(str, action.choices), "")
    known = _BY_METAVAR.get(str(action.metavar))
    if known is None:
        return {}
    try:
        return known()
    except (CommandError, DragomanError, OSError):  # a message would damage the line that is being edited
        return {}


def _clients() -> Candidates:
    from dragoman.cli.client_setup import CLIENTS

    return {client.name: client.title for client in CLIENTS}


def _dialects() -> Candidates:
    from dragoman.dialects import names

    return dict.fromkeys(names(), "")


def _upstreams() -> Candidates:
    from dragoman.gateway.config import load_config

    return {name: each.dialect.name for name, each in load_config(None, os.environ).upstreams.items()}


def _formats() -> Candidates:
    from dragoman.cli.raw_tools import list_formats

    return {"auto": "all formats", **{row.name: row.models for row in list_formats()}}


def _requests() -> Candidates:
    from dragoman.cli.status import admin_socket, objects_in, query_admin

    found = {"last": "the last request"}
    for row in objects_in(query_admin(admin_socket(None), "/requests?id=", timeout=_MAX_WAIT)):
        described = " ".join(str(row[name]) for name in ("status", "model", "upstream") if row.get(name))
        found[str(row.get("request_id"))] = described
    return found


def _filter_keys() -> Candidates:
    from dragoman.gateway.filter_keys import FILTER_KEYS

    return {f"{key.name}:": key.detail for key in FILTER_KEYS.values()}


_BY_METAVAR: dict[str, Callable[[], Candidates]] = {
    "CLIENT": _clients,
    "D": _dialects,
    "DIALECT": _dialects,
    "FILTER": _filter_keys,
    "ID": _requests,
    "TABLE": _formats,
    "UPSTREAM": _upstreams,
}
