"""`dragoman auth`: log in to Kiro and out, and list, import and refresh the logins of this machine."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import datetime

from msgspec import structs

from dragoman.cli.terminal import EXIT_LOGIN_NEEDED, notice_if_slow, plain, print_error, say
from dragoman.errors import DragomanError
from dragoman.upstream.credentials import CredentialFault, Fetch, SecretText, open_fetch
from dragoman.upstream.kiro.atomic_files import file_lock
from dragoman.upstream.kiro.credential import KiroCredential
from dragoman.upstream.kiro.logins import (
    DEFAULT_LOGIN,
    FoundLogin,
    KiroPaths,
    find_logins,
    is_simulated_login,
    link_document,
    open_store,
)
from dragoman.upstream.kiro.service import Profile, list_profiles
from dragoman.upstream.kiro.sign_in import DeviceLogin, LoginPrompt
from dragoman.upstream.kiro.stores import ApiKeyStore, OwnStore, read_document
from dragoman.upstream.kiro.token import (
    BUILDER_ID,
    DEFAULT_REGION,
    Document,
    Endpoints,
    Token,
    first_text,
    is_loopback,
    region_of_arn,
    render_token,
)
from dragoman.upstream.private_files import make_private_folder
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_KINDS = {"social": "Google or GitHub", "idc": "IAM Identity Center", "external_idp": "external", "api_key": "API key"}
_PROVIDER = "the provider of the login (default: kiro)"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman auth`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="login | list | import | refresh | logout")
    login = actions.add_parser("login", help="log in with a code that you confirm in a browser")
    login.add_argument(
        "--region", default=DEFAULT_REGION, help=f"the region of the sign-in service (default: {DEFAULT_REGION})"
    )
    login.add_argument(
        "--start-url", default=BUILDER_ID, metavar="URL", help="your organisation's start page (default: Builder ID)"
    )
    login.add_argument("--profile-arn", default="", metavar="ARN", help="the profile to use, if you have several")
    login.add_argument("--no-browser", action="store_true", help="print the address, but do not open a browser")
    list_parser = actions.add_parser("list", help="list the Kiro logins of this machine")
    list_parser.add_argument("--json", action="store_true", help="print JSON, without secrets")
    list_parser.add_argument("--usage", action="store_true", help="request the remaining quota from the service")
    import_parser = actions.add_parser("import", help="use the login of the Kiro IDE or of kiro-cli, or an API key")
    source = import_parser.add_mutually_exclusive_group()
    source.add_argument(
        "--from",
        dest="source",
        default="",
        metavar="ide|cli[:PATH]",
        help="the login to import (default: the first found)",
    )
    source.add_argument("--api-key", action="store_true", help="read an API key from standard input")
    import_parser.add_argument(
        "--copy", action="store_true", help="copy the token instead of sharing it with the other program"
    )
    import_parser.add_argument("--replace", action="store_true", help="overwrite a login of the same name")
    refresh_parser = actions.add_parser("refresh", help="renew a login now")
    refresh_parser.add_argument(
        "--from",
        dest="source",
        default="",
        metavar="own|ide|cli[:…]",
        help="the login to refresh (default: the first found)",
    )
    logout_parser = actions.add_parser("logout", help="remove a login of Dragoman from this machine")
    for action in (login, import_parser, logout_parser):
        action.add_argument("--name", default=DEFAULT_LOGIN, help=f"the name of the login (default: {DEFAULT_LOGIN})")
    for action in (login, list_parser, import_parser, refresh_parser, logout_parser):
        action.add_argument("provider", choices=["kiro"], nargs="?", default="kiro", help=_PROVIDER)
    for action in (login, list_parser, import_parser, refresh_parser):
        action.add_argument("--endpoint", default="", metavar="URL", help="the simulator's address, instead of AWS")
    logout_parser.set_defaults(endpoint="")


def run(arguments: Namespace) -> int:
    """Run `dragoman auth`; return the exit status."""
    actions = {"login": _log_in, "list": _list, "import": _import, "refresh": _refresh, "logout": _log_out}
    try:
        if arguments.endpoint and not is_loopback(arguments.endpoint):
            return print_error(
                f"--endpoint must be an address of this machine (loopback), not {arguments.endpoint!r}.", 2
            )
        return asyncio.run(actions[arguments.action](arguments))
    except CredentialFault as fault:
        return print_error(fault, EXIT_LOGIN_NEEDED if fault.is_permanent else 1)
    except DragomanError as error:
        return print_error(error, 1)


# --- login


async def _log_in(arguments: Namespace) -> int:
    store = OwnStore(KiroPaths().own_file(arguments.name))
    if arguments.profile_arn and not region_of_arn(arguments.profile_arn):
        return print_error(f"--profile-arn: {arguments.profile_arn!r} is not the ARN of a profile.", 2)
    if arguments.endpoint and store.path.exists() and not is_simulated_login(store.path):
        hint = "Add --name practice to keep both."
        return print_error(f"a login named {arguments.name!r} for the real service exists. {hint}", 2)
    endpoints = _endpoints(arguments)
    async with open_fetch(os.environ) as fetch:
        login = DeviceLogin(fetch, region=arguments.region, start_url=arguments.start_url, endpoints=endpoints)
        prompt = await login.begin()
        _show(prompt, browse=not arguments.no_browser)
        token = structs.replace(await login.wait(prompt, time.time), endpoint=arguments.endpoint)
        arn = arguments.profile_arn or await _find_profile(fetch, endpoints or Endpoints(), token)
    await _store(store, render_token(structs.replace(token, profile_arn=arn)))
    _print_message(f"Logged in. The login is stored in {store.path}" + (f", with the profile {arn}." if arn else "."))
    print(f"own:{arguments.name}")
    return 0


def _show(prompt: LoginPrompt, *, browse: bool) -> None:
    _print_message(
        f"Open {prompt.url}\nand confirm the code {prompt.code}. (To enter it yourself: {prompt.page})\nWaiting …"
    )
    if browse and sys.stdin.isatty():
        import webbrowser

        webbrowser.open(prompt.url)


async def _find_profile(fetch: Fetch, endpoints: Endpoints, token: Token) -> str:
    """Return the ARN of the login's profile; empty if the profiles cannot be listed, which must not lose the login."""
    try:
        profiles = await list_profiles(fetch, endpoints, token)
    except DragomanError as error:
        _print_message(
            f"The profiles of this login could not be listed ({error}). They are looked up again at the first request."
        )
        return ""
    return _choose_profile(profiles).arn if profiles else ""


def _choose_profile(profiles: Sequence[Profile]) -> Profile:
    if len(profiles) == 1:
        return profiles[0]
    _print_message("This login has several profiles:")
    for number, profile in enumerate(profiles, 1):
        _print_message(f"  {number}  {profile.name}  {profile.arn}")
    choice = input("Which one? [1] ") if sys.stdin.isatty() else ""
    index = int(choice) - 1 if choice.isdecimal() and 0 < int(choice) <= len(profiles) else 0
    _print_message(f"Using {profiles[index].arn}. Choose another with --profile-arn.")
    return profiles[index]


async def _store(store: OwnStore, document: Document) -> None:
    """Write under the lock: a gateway that refreshes the old login must not overwrite the new one."""
    try:
        make_private_folder(store.path.parent)
    except OSError as error:
        raise CredentialFault(f"cannot create the folder {store.path.parent}: {error.strerror or error}.") from None
    async with file_lock(store.lock):
        await asyncio.to_thread(store.write, document)


# --- list


async def _list(arguments: Namespace) -> int:
    with notice_if_slow("asking the service for the quota"):
        async with open_fetch(os.environ) as fetch:
            rows = [await _describe(login, fetch, arguments) for login in find_logins(KiroPaths())]
    if arguments.json:
        sys.stdout.write(jsonio.encode_pretty(rows).decode() + "\n")
    elif not rows:
        _print_message("There is no Kiro login on this machine. Run `dragoman auth login kiro`.")
    else:
        for row in rows:
            say(plain(_line(row)), rest="    ")
    return 0


async def _describe(login: FoundLogin, fetch: Fetch, arguments: Namespace) -> dict[str, Json]:
    credential = KiroCredential(login.store, fetch, name=login.spec, endpoints=_endpoints(arguments))
    row = credential.describe()
    if arguments.usage:
        try:
            usage = await credential.usage()
        except CredentialFault as fault:
            row["problem"] = str(fault)
        else:
            row |= credential.describe()
            row["usage"] = usage.describe()
    return row


def _line(row: dict[str, Json]) -> str:
    words = [f"{row['name']:<14}", f"{_KINDS.get(str(row.get('kind')), ''):<19}", f"{row['state']}{_validity(row)}"]
    usage = row.get("usage")
    if isinstance(usage, dict):
        words.append(f"{usage['remaining']:g} of {usage['limit']:g} left")
    words.append(str(row["source"]))
    line = "  ".join(words)
    return f"{line}\n    {row['problem']}" if row.get("problem") else line


def _validity(row: dict[str, Json]) -> str:
    ends = row.get("expires_at")
    if not isinstance(ends, (int, float)) or row["state"] == "expired":
        return ""
    return f" until {datetime.fromtimestamp(ends).astimezone():%Y-%m-%d %H:%M}"


# --- import and refresh


async def _import(arguments: Namespace) -> int:
    places = KiroPaths()
    store = OwnStore(places.own_file(arguments.name))
    if store.path.exists() and not arguments.replace:
        return print_error(
            f"a login named {arguments.name!r} exists. Add --name to choose another name, or --replace.", 2
        )
    if arguments.api_key:
        document = render_token(ApiKeyStore(_read_key()).load())
    else:
        spec = arguments.source or _first_foreign(places)
        if spec.partition(":")[0] not in ("ide", "cli"):
            return print_error(f"--from must be ide or cli, optionally with a path (ide:PATH), not {spec!r}.", 2)
        token = await asyncio.to_thread(open_store(spec, places).load)
        token = structs.replace(token, endpoint=arguments.endpoint, slot="")
        document = render_token(token) if arguments.copy else link_document(spec)
    await _store(store, document)
    _print_message(_imported(arguments, store))
    print(f"own:{arguments.name}")
    return 0


def _imported(arguments: Namespace, store: OwnStore) -> str:
    if arguments.api_key:
        return f"The key is stored in {store.path}."
    if arguments.copy:
        return (
            f"Copied to {store.path}. The first program that refreshes may make the other's login invalid;"
            " without --copy both programs share one login."
        )
    return (
        f"{store.path} refers to that login. Both programs share it, and each reads the tokens that the other renews."
    )


def _first_foreign(places: KiroPaths) -> str:
    for login in find_logins(places):
        if not login.spec.startswith("own:"):
            return login.spec
    raise CredentialFault("neither the Kiro IDE nor kiro-cli is logged in here. Run `dragoman auth login kiro`.")


def _read_key() -> SecretText:
    """Read the key from a prompt without echo, or from a pipe. The command line is visible to other users."""
    if sys.stdin.isatty():
        from getpass import getpass

        return SecretText(getpass("API key: ").strip())
    return SecretText(sys.stdin.readline(4096).strip())


async def _refresh(arguments: Namespace) -> int:
    async with open_fetch(os.environ) as fetch:
        store = open_store(arguments.source)
        credential = KiroCredential(store, fetch, name="kiro", endpoints=_endpoints(arguments))
        with notice_if_slow("asking the sign-in service for a new token"):
            await credential.renew()
        described = credential.describe()
    if described.get("kind") == "api_key":
        _print_message("An API key needs no refresh.")
    elif described.get("unsaved"):
        return print_error(described["problem"], 1)
    else:
        _print_message(f"Refreshed: {store.label} is valid{_validity(described)}.")
    return 0


# --- logout


async def _log_out(arguments: Namespace) -> int:
    places = KiroPaths()
    store = OwnStore(places.own_file(arguments.name))
    if not os.path.lexists(store.path):
        names = ", ".join(login.spec for login in find_logins(places)) or "none"
        return print_error(
            f"there is no login {arguments.name!r} of Dragoman (logins of this machine: {names}). Log out of the Kiro"
            " IDE and of kiro-cli there.",
            1,
        )
    shared = _shared_login(store)
    async with file_lock(store.lock):
        await asyncio.to_thread(store.remove)
    shared_login_notice = f" The login of {shared} itself stays; log out there to end it." if shared else ""
    others = find_logins(places)
    now_used = f"Now {others[0].spec} is the first login." if others else "No Kiro login is left on this machine."
    _print_message(f"Removed {store.path}.{shared_login_notice} {now_used}")
    return 0


def _shared_login(store: OwnStore) -> str:
    """Return the login of another program that a file refers to; empty if it has a token of its own."""
    try:
        return first_text(read_document(store.path), "use")
    except CredentialFault:
        return ""


# --- shared by the actions


def _endpoints(arguments: Namespace) -> Endpoints | None:
    return Endpoints.everything_at(arguments.endpoint) if arguments.endpoint else None


def _print_message(text: str) -> None:
    say(plain(text), sys.stderr)
