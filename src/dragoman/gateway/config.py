"""The configuration: one TOML file, layered defaults < presets < file < environment < flags, validated as a whole.

`load_config` reads files and returns a `Config`; `build_config` is the same without I/O. All problems are raised as one
ConfigError; each names its file and line, or its environment variable.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from msgspec import NODEFAULT, Meta, Struct, structs

from dragoman.gateway.account_config import AccountSettings, PriceSettings, StoreSettings, check_store
from dragoman.gateway.inspector_config import InspectorSettings
from dragoman.gateway.layers import (
    DEFAULT,
    ConfigError,
    Leaves,
    Origin,
    Problem,
    flatten_tree,
    from_environment,
    from_flags,
    merge_layers,
    nest_leaves,
    suggest_name,
)
from dragoman.gateway.limits import RequestLimits, tree_levels
from dragoman.gateway.media_urls import MediaUrls
from dragoman.gateway.presets import BUILT_IN, PRESETS, preset_of
from dragoman.gateway.schema import ConfigReader, fields_of
from dragoman.gateway.secret_sources import ReferenceContext, expand_path
from dragoman.gateway.secrets import AppFolders, ConfiguredSecret, app_folders
from dragoman.gateway.targets import RouteRule, Routes, RouteTarget
from dragoman.gateway.upstream_config import (
    TimeoutSettings,
    Upstream,
    UpstreamLimits,
    as_lists,
    read_upstream,
    with_table_files,
)
from dragoman.http.addresses import is_loopback, is_network
from dragoman.translate import TranslationSettings
from dragoman.wire.toml_lines import KeyPath, dotted_key, line_numbers

_PORT = Meta(ge=0, le=65535)
_DEEPEST = 20
_UNNAMED = "config"  # the name of a file or mapping without a path, in messages
_SYNTAX = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)\Z")


class Server(Struct, frozen=True, kw_only=True):
    """`[server]`: where the gateway listens, and what it accepts."""

    host: str = "127.0.0.1"
    port: Annotated[int, _PORT] = 8787
    hosts: tuple[str, ...] = ()  # more allowed names in the Host header
    insecure_http: bool = False  # listen beyond loopback without TLS
    key: ConfiguredSecret | None = None  # None: the generated key
    max_body: Annotated[int, Meta(ge=1024)] = 32 * 1024 * 1024
    offload: Annotated[int, Meta(ge=0)] = 1024 * 1024  # bytes above which a worker process reads a request; 0: never
    websockets: bool = True  # accept Responses over WebSocket
    claude_aliases: bool = False  # list other models as NAME-as-claude, which Claude Code shows, to Anthropic clients
    media_urls: MediaUrls = "web"  # URLs of images and files that are passed on to upstreams
    ping: Annotated[float, Meta(gt=0)] = 15.0  # seconds of silence before a client gets a keep-alive
    hold: Annotated[float, Meta(ge=0)] = 2.0  # seconds to buffer a stream without content, so that a retry is possible
    drain: Annotated[float, Meta(ge=0)] = 120.0  # seconds for running streams after SIGTERM
    workers: Annotated[int, Meta(ge=1, le=256)] = 1  # processes that share the port
    admin_socket: Path
    admin_port: Annotated[int, _PORT] | None = None  # on loopback; None: the socket only
    min_body_rate: Annotated[int, Meta(ge=0)] = 1024  # bytes per second of a request body, at least; 0: any
    trusted_proxies: tuple[str, ...] = ()  # addresses and networks whose X-Forwarded-For is trusted
    proxy_protocol: bool = False  # connections of trusted proxies begin with the PROXY protocol
    limits: RequestLimits = RequestLimits()


class Log(Struct, frozen=True, kw_only=True):
    """`[log]`: the access log. The format `auto` is text on a terminal and JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"


class Config(Struct, frozen=True, kw_only=True):
    """All settings. Immutable: a reload creates another one, and running requests keep theirs."""

    server: Server
    log: Log
    explain: bool
    upstreams: dict[str, Upstream]
    routes: Routes
    model_limits: dict[str, ModelTable]  # by names and patterns of models
    store: StoreSettings | None  # None: no accounts
    accounts: AccountSettings
    prices: PriceSettings
    inspector: InspectorSettings
    file: Path | None
    digest: str = ""  # of the text of the file
    warnings: tuple[str, ...] = ()

    def secrets(self) -> list[ConfiguredSecret]:
        """Return all secrets, for the redactor."""
        own = [self.server.key] if self.server.key else []
        return [*own, *(secret for upstream in self.upstreams.values() for secret in upstream.secrets())]


class LoadedConfig(Struct, frozen=True):
    """A configuration together with the origin of each of its values."""

    config: Config
    leaves: Leaves


class ModelTable(Struct, frozen=True, kw_only=True):
    """`[models.NAME]`: limits of a model that clients see in the model list, by its name or a pattern. In tokens."""

    window: Annotated[int, Meta(ge=1)] | None = None  # input and output together
    longest_answer: Annotated[int, Meta(ge=1)] | None = None


class DefaultTable(Struct, frozen=True, kw_only=True):
    """`[default]`: the target of all models that no route matches."""

    upstream: str
    model: str = ""
    fallbacks: tuple[str, ...] = ()


class RouteTable(DefaultTable, frozen=True, kw_only=True):
    """`[[routes]]`: models that match go to an upstream, under the name `model` if it is set."""

    match: tuple[str, ...]


class _Top(Struct, frozen=True, kw_only=True):
    server: dict[str, Any] = {}
    log: dict[str, Any] = {}
    explain: bool = True
    allow_literal_secrets: bool = False
    upstreams: dict[str, Any] = {}
    models: dict[str, Any] = {}
    routes: list[Any] = []
    default: dict[str, Any] | None = None
    store: dict[str, Any] | None = None
    accounts: dict[str, Any] = {}
    prices: dict[str, Any] = {}
    inspector: dict[str, Any] = {}


# --- reading files and the environment


def find_file(file: Path | None, environ: Mapping[str, str]) -> tuple[Path, bool]:
    """Return the file to read, and whether it was named explicitly: then it must exist."""
    named = file or (Path(environ["DRAGOMAN_CONFIG"]) if environ.get("DRAGOMAN_CONFIG") else None)
    if named is not None:
        return expand_path(str(named), Path.cwd(), app_folders(environ).home), True
    return app_folders(environ).config_file, False


def load_config(
    source: Path | Mapping[str, Any] | None, environ: Mapping[str, str], *, flags: Mapping[str, Any] | None = None
) -> Config:
    """Load the configuration: from this file or mapping, else DRAGOMAN_CONFIG, else the XDG folder.

    Relative paths in a mapping start at the current folder. Raises ConfigError.
    """
    if isinstance(source, Mapping):
        tree = _copied_tree(source)
        return _with_files(_build(_Parsed(tree, {}, Path.cwd()), environ, flags or {})).config
    return load_with_origins(source, environ, flags=flags).config


def load_with_origins(
    file: Path | None, environ: Mapping[str, str], *, flags: Mapping[str, Any] | None = None
) -> LoadedConfig:
    """Load the configuration with the origin of each value. Raises ConfigError."""
    path, must = find_file(file, environ)
    text = _read(path, must)
    return _with_files(build_config(text or "", path if text is not None else None, environ, flags or {}))


def _with_files(loaded: LoadedConfig) -> LoadedConfig:
    """Return the configuration with the files that it names; those that are only checked must exist."""
    missing = [_missing(key, path, loaded) for key, path in _files(loaded.config) if not path.is_file()]
    if missing:
        raise ConfigError(missing)
    upstreams = with_table_files(loaded.config.upstreams, loaded.leaves)
    return structs.replace(loaded, config=structs.replace(loaded.config, upstreams=upstreams))


def _read(path: Path, must: bool) -> str | None:
    try:
        return path.read_bytes().decode("utf-8-sig")  # Editors on Windows write a byte order mark.
    except FileNotFoundError:
        if not must:
            return None
        why, hint = "there is no such file", "--config and DRAGOMAN_CONFIG name the file to read"
    except OSError as error:
        why, hint = (error.strerror or str(error)).lower(), ""
    except UnicodeDecodeError:
        why, hint = "it is not UTF-8 text", ""
    raise ConfigError([Problem("", why, hint, Origin("file", str(path)))])


def _files(config: Config) -> list[tuple[KeyPath, Path]]:
    upstreams: list[tuple[KeyPath, Path]] = [
        (("upstreams", name, *key), path)
        for name, upstream in config.upstreams.items()
        for key, path in ((("ca_file",), upstream.ca_file), (("simulator", "script"), upstream.simulator.script))
        if path is not None
    ]
    return [*((("prices", "file"), path) for path in config.prices.file), *upstreams]


def price_files(config: Config, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the user's price files, the strongest first.

    They are the configured ones, else prices.toml beside the configuration, else the one in the usual folder.
    """
    beside = [config.file.with_name("prices.toml")] if config.file is not None else []
    usual = [path for path in (*beside, app_folders(environ).price_file) if path.is_file()]
    return config.prices.file or tuple(usual[:1])


def _missing(key: KeyPath, path: Path, loaded: LoadedConfig) -> Problem:
    leaf = loaded.leaves.get(key)
    origin = leaf.origin if leaf else Origin("environment", "SSL_CERT_FILE")
    return Problem(dotted_key(key), f"there is no file {path}", "", origin)


# --- pure


class _Parsed(Struct, frozen=True):
    """A configuration file or mapping, parsed; `lines` are those of its keys, relative paths start at `folder`."""

    tree: dict[str, Any]
    lines: Mapping[KeyPath, int]
    folder: Path
    file: Path | None = None
    digest: str = ""


def build_config(text: str, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> LoadedConfig:
    """Build the configuration from the text of the file, the environment and the flags. Pure. Raises ConfigError."""
    folder = file.parent if file is not None else app_folders(environ).config
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest() if file is not None else ""
    return _build(_Parsed(_parsed(text, file), line_numbers(text), folder, file, digest), environ, flags)


def _build(parsed: _Parsed, environ: Mapping[str, str], flags: Mapping[str, Any]) -> LoadedConfig:
    file, lines, home = parsed.file, parsed.lines, app_folders(environ)
    user_leaves = flatten_tree(parsed.tree, Origin("file", str(file or _UNNAMED)), lines=lines)
    from_variables, warnings = from_environment(environ, user_leaves, _Top.__struct_fields__)
    user_leaves = merge_layers(user_leaves, from_variables, from_flags(flags))
    if not any(key[0] in ("upstreams", "routes", "default") for key in user_leaves):
        user_leaves = merge_layers(flatten_tree(BUILT_IN, Origin("built-in")), user_leaves)
    leaves = merge_layers(_defaults(user_leaves, home), _presets(user_leaves, environ), user_leaves)
    literals = user_leaves.get(("allow_literal_secrets",))
    allowed = literals is not None and literals.value in (True, "true", "1")
    reader = ConfigReader(leaves, lines, file, ReferenceContext(environ, parsed.folder, home.home), allowed)
    config = _Assembly(nest_leaves(leaves), reader).config(parsed, tuple(warnings))
    if config is None:
        # In the order of the file; problems from elsewhere come first.
        raise ConfigError(sorted(dict.fromkeys(reader.problems), key=lambda problem: problem.origin.line))
    return LoadedConfig(config, leaves)


def _copied_tree(mapping: Mapping[Any, Any], at: KeyPath = ()) -> dict[str, Any]:
    """Return the mapping of a program as the tree that a file gives: its paths as text, its tuples as lists."""
    for name in mapping:
        if not isinstance(name, str):
            problem = f"the name of a setting must be a string, got {name!r}"
            raise ConfigError([Problem(dotted_key(at), problem, "", Origin("file", _UNNAMED))])
    return {name: _copied_value(value, (*at, name)) for name, value in mapping.items()}


def _copied_value(value: object, at: KeyPath) -> object:
    if len(at) > _DEEPEST:
        raise ConfigError([Problem("", "tables are nested too deeply", "", Origin("file", _UNNAMED))])
    match value:
        case Mapping():
            return _copied_tree(value, at)
        case list() | tuple():
            return [_copied_value(item, (*at, index)) for index, item in enumerate(value)]
        case PurePath():
            return str(value)
        case _:
            return value


def _parsed(text: str, file: Path | None) -> dict[str, Any]:
    try:
        tree = tomllib.loads(text)
        if any(depth > _DEEPEST for depth, _ in enumerate(tree_levels(tree), 1)):
            raise RecursionError("tables are nested too deeply")
        return tree
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        found = _SYNTAX.search(str(error))
        line = int(found[1]) if found and found[1] else text.count("\n") + 1 if found else 0
        why = _SYNTAX.sub("", str(error))
        column = f", column {found[2]}" if found and found[2] else ""
        problem = Problem("", f"not valid TOML: {why}{column}", "", Origin("file", str(file or _UNNAMED), line))
    raise ConfigError([problem])


def _defaults(user_leaves: Leaves, home: AppFolders) -> Leaves:
    tree: dict[str, Any] = _default_values(_Top)
    socket, limits = str(home.admin_socket), _default_values(RequestLimits)
    tree["server"] = {**_default_values(Server), "admin_socket": socket, "limits": limits}
    tree["log"] = _default_values(Log)
    tree["accounts"] = _default_values(AccountSettings)
    tree["inspector"] = _default_values(InspectorSettings)
    if any(key[0] == "store" for key in user_leaves):
        tree["store"] = _default_values(StoreSettings)
    for name in _upstream_names(user_leaves):
        tables: dict[str, type[Struct]] = {
            "translation": TranslationSettings,
            "limits": UpstreamLimits,
            "timeouts": TimeoutSettings,
        }
        inner = {key: _default_values(shape) for key, shape in tables.items()}
        tree.setdefault("upstreams", {})[name] = inner
    return flatten_tree(tree, DEFAULT)


def _default_values(shape: type[Struct]) -> dict[str, Any]:
    """Return the defaults that are plain values; empty strings, lists and tables are left out."""
    fields = fields_of(shape)
    defaults = {field.name: field.default for field in fields if field.default is not NODEFAULT}
    defaults = {name: value for name, value in defaults.items() if isinstance(value, bool | int | float | str)}
    return {name: value for name, value in defaults.items() if value != ""}


def _presets(user_leaves: Leaves, environ: Mapping[str, str]) -> Leaves:
    tree = nest_leaves(user_leaves).get("upstreams")
    leaves: Leaves = {}
    for name in _upstream_names(user_leaves):
        table = tree.get(name) if isinstance(tree, Mapping) else None
        preset = table.get("preset") if isinstance(table, Mapping) else None
        if isinstance(table, Mapping) and isinstance(preset, str) and preset in PRESETS:
            below = preset_of(preset, table, environ)
            leaves |= flatten_tree(below, Origin("preset", preset), ("upstreams", name))
    return leaves


def _upstream_names(leaves: Leaves) -> list[str]:
    return list(dict.fromkeys(str(key[1]) for key in leaves if key[0] == "upstreams" and len(key) > 1))


class _Assembly:
    """Builds a Config from the merged tree of all layers."""

    def __init__(self, tree: dict[str, Any], reader: ConfigReader) -> None:
        self._tree = tree
        self._reader = reader

    def config(self, parsed: _Parsed, warnings: tuple[str, ...]) -> Config | None:
        reader = self._reader
        top = reader.fields(fields_of(_Top), self._tree, ())
        server = self._server(top["server"]) if "server" in top else None
        log = reader.table(Log, top.get("log", {}), ("log",))
        tables = top.get("upstreams", {})
        upstreams = {name: read_upstream(name, table, ("upstreams", name), reader) for name, table in tables.items()}
        routes = self._routes(top, upstreams)
        models = top.get("models", {})
        model_limits = {name: reader.table(ModelTable, table, ("models", name)) for name, table in models.items()}
        store = self._store(top.get("store"))
        accounts = reader.table(AccountSettings, top.get("accounts", {}), ("accounts",))
        prices = reader.table(PriceSettings, as_lists(top.get("prices", {}), ("file",)), ("prices",))
        inspector = reader.table(InspectorSettings, top.get("inspector", {}), ("inspector",))
        if reader.problems or server is None or log is None or accounts is None or prices is None or inspector is None:
            return None
        return Config(
            server=server,
            log=log,
            explain=top.get("explain", True),
            upstreams={name: upstream for name, upstream in upstreams.items() if upstream is not None},
            routes=routes,
            model_limits={name: table for name, table in model_limits.items() if table is not None},
            store=store,
            accounts=accounts,
            prices=prices,
            inspector=inspector,
            file=parsed.file,
            digest=parsed.digest,
            warnings=warnings,
        )

    def _server(self, tree: dict[str, Any]) -> Server | None:
        before = len(self._reader.problems)
        values = self._reader.fields(fields_of(Server), tree, ("server",))
        if not is_loopback(values.get("host", "localhost")) and not values.get("insecure_http"):
            hint = "set server.insecure_http = true if a TLS proxy is in front of it, or the network is trusted"
            self._reader.problem(("server", "host"), "beyond loopback, plain HTTP exposes keys and prompts", hint)
        self._check_proxies(values)
        return Server(**values) if len(self._reader.problems) == before else None

    def _check_proxies(self, values: dict[str, Any]) -> None:
        for text in values.get("trusted_proxies", ()):
            if not is_network(text):
                hint = "write an address or a network: 10.0.0.5, 10.0.0.0/8, 2001:db8::/32"
                self._reader.problem(("server", "trusted_proxies"), f"{text!r} is not an address or a network", hint)
        if values.get("proxy_protocol") and not values.get("trusted_proxies"):
            hint = "set server.trusted_proxies to the addresses of the proxies that send it"
            self._reader.problem(("server", "proxy_protocol"), "the PROXY protocol needs trusted proxies", hint)

    def _store(self, tree: dict[str, Any] | None) -> StoreSettings | None:
        settings = None if tree is None else self._reader.table(StoreSettings, tree, ("store",))
        if settings is not None:
            check_store(settings, lambda key, message, hint: self._reader.problem(("store", key), message, hint))
        return settings

    # --- routes

    def _routes(self, top: dict[str, Any], upstreams: dict[str, Upstream | None]) -> Routes:
        rules = [
            self._rule(RouteTable, table, ("routes", index), upstreams)
            for index, table in enumerate(top.get("routes", []))
        ]
        default = top.get("default")
        last = self._rule(DefaultTable, default, ("default",), upstreams) if default is not None else None
        known = {name: upstream for name, upstream in upstreams.items() if upstream is not None}
        return Routes(known, [rule for rule in rules if rule is not None], last)

    def _rule(
        self, shape: type[DefaultTable], tree: Any, at: KeyPath, upstreams: Mapping[str, object]
    ) -> RouteRule | None:
        table = self._reader.table(shape, as_lists(tree, ("match", "fallbacks")), at)
        if table is None:
            return None
        targets = [
            (RouteTarget(table.upstream, table.model), "upstream"),
            *((RouteTarget.parse(text), "fallbacks") for text in table.fallbacks),
        ]
        for target, name in targets:
            if target.upstream not in upstreams:
                hint = suggest_name(target.upstream, upstreams) or f"known: {', '.join(upstreams) or 'none'}"
                self._reader.problem((*at, name), f"there is no upstream {target.upstream!r}", hint)
        return RouteRule(table.match if isinstance(table, RouteTable) else (), tuple(target for target, _ in targets))
