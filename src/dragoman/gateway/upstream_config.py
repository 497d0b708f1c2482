"""Read and check the tables `[upstreams.NAME]`, and the raw tool table files that they name.

`read_upstream` converts a table, merged with its preset, into an `Upstream`, which the gateway uses. Only
`with_table_files` does I/O. `config` calls both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from msgspec import Meta, Struct, structs

import dragoman.dialects as registry
from dragoman.dialects.base import ApiRequest, Dialect
from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools import FORMAT_ALIASES, FORMAT_NAMES
from dragoman.filters.raw_tools.table import FILE_PREFIX, TableFileError, is_file_choice, load_table_file
from dragoman.gateway.layers import DEFAULT, ConfigError, Leaves, Problem, suggest_name
from dragoman.gateway.presets import PRESETS, SIMULATOR
from dragoman.gateway.schema import ConfigReader, InvalidValue, fields_of
from dragoman.gateway.secret_sources import expand_path
from dragoman.gateway.secrets import ConfiguredSecret, plain_value
from dragoman.http.addresses import is_loopback, proxy_variable
from dragoman.translate import TranslationSettings, configure_dialect
from dragoman.wire.toml_lines import KeyPath, dotted_key

Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
LoginSource: TypeAlias = Literal["auto", "store", "ide", "cli", "aws"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d\Z")  # a region becomes part of a host name
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*\Z")
_SECRET_WORD = re.compile(
    r"(?:(?:^|[-_])(?:auth|authorization|cookie)|key|token|secret|password)(?:$|[-_])", re.IGNORECASE
)
_RESERVED_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "te", "upgrade", "trailer", "keep-alive", "expect"}
)


_LIST_SETTINGS = ("key", "credentials", "models", "long_thinking")
_BASIC_SETTINGS = ("preset", "dialect", "base_url", "region")


class TimeoutSettings(Struct, frozen=True, kw_only=True):
    """Timeouts of an upstream, in seconds.

    `first_byte`: until the response begins. `idle`: between two chunks. `silent`: between two chunks with content;
    pings do not count.
    """

    dns: Seconds = 3.0
    connect: Seconds = 5.0
    tls: Seconds = 5.0
    write: Seconds = 30.0  # until the upstream has read the request
    first_byte: Seconds = 300.0
    idle: Seconds = 120.0
    long_idle: Seconds = 900.0  # the same for models in `long_thinking`
    silent: Seconds = 900.0  # at least `long_idle` for models in `long_thinking`
    total: Seconds = 3600.0


class UpstreamLimits(Struct, frozen=True, kw_only=True):
    """How many requests an upstream gets at once, how many may wait for a slot, and for how many seconds.

    `breaker`: whether failures and requested pauses put the upstream into cooldown. `cache_affinity`: for how many
    seconds after a response with a prompt cache a session prefers this upstream and credential; 0: it does not.
    """

    concurrency: Annotated[int, Meta(ge=1)] = 32
    queue: Annotated[int, Meta(ge=0)] = 64
    queue_wait: Seconds = 30.0
    breaker: bool = True
    cache_affinity: Annotated[float, Meta(ge=0)] = 300.0


class SimulatorSettings(Struct, frozen=True, kw_only=True):
    """Settings of an upstream with the preset `simulator`."""

    profile: Literal["official", "observed", "paranoid", "strict", "lenient"] = "observed"
    script: Path | None = None
    tokens_per_second: Annotated[float, Meta(ge=0)] = 0.0  # of a stream, if there is no script; 0: all at once


class Login(Struct, frozen=True):
    """A source of credentials that expire: Dragoman's store, the Kiro IDE, kiro-cli, or AWS's files and services.

    `detail` names one of several logins.
    """

    source: LoginSource
    detail: str = ""


class UpstreamTable(Struct, frozen=True, kw_only=True):
    """`[upstreams.NAME]` with its preset, before it is combined with its dialect and the environment."""

    preset: str | None = None
    dialect: str | None = None
    base_url: str | None = None
    region: str | None = None
    key: tuple[ConfiguredSecret, ...] = ()
    key_header: str | None = None
    credentials: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    default_model: str | None = None
    small_model: str | None = None
    first_model: bool = False
    long_thinking: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    translation: TranslationSettings = TranslationSettings()
    limits: UpstreamLimits = UpstreamLimits()
    timeouts: TimeoutSettings = TimeoutSettings()
    simulator: SimulatorSettings = SimulatorSettings()
    headers: dict[str, Any] = {}
    proxy: str | None = None
    ca_file: Path | None = None
    insecure_http: bool = False


class Upstream(Struct, frozen=True, kw_only=True):
    """A configured upstream. `dialect` has its settings; `base_url` is empty for a simulator until it runs."""

    name: str
    dialect: Dialect
    preset: str = ""
    kind: Literal["http", "simulator"] = "http"
    base_url: str = ""
    region: str = ""
    keys: tuple[ConfiguredSecret, ...] = ()
    key_header: str = "authorization"  # as a bearer token; any other header has the key alone
    logins: tuple[Login, ...] = ()
    models: tuple[str, ...] = ()
    default_model: str = ""  # answers for names that the upstream does not know
    small_model: str = ""  # the same for names of small models; empty: `default_model`
    first_model: bool = False  # without a default model, the first of the upstream's own list answers
    long_thinking: tuple[str, ...] = ()  # names and patterns of models that may send nothing for long
    settings: TranslationSettings = TranslationSettings()
    limits: UpstreamLimits = UpstreamLimits()
    timeouts: TimeoutSettings = TimeoutSettings()
    simulator: SimulatorSettings = SimulatorSettings()
    headers: tuple[tuple[str, ConfiguredSecret], ...] = ()  # names in lower case
    proxy: ConfiguredSecret | None = None
    ca_file: Path | None = None

    def secrets(self) -> list[ConfiguredSecret]:
        """Return all secrets of the upstream, which logs must not show."""
        headers = [value for name, value in self.headers if is_secret_header(name)]
        return [*self.keys, *headers, *([self.proxy] if self.proxy else [])]


def is_secret_header(name: str) -> bool:
    """Return whether the value of a header of this name is a secret."""
    return _SECRET_WORD.search(name) is not None


def read_upstream(name: str, tree: object, at: KeyPath, reader: ConfigReader) -> Upstream | None:
    """Return the upstream of a table that includes its preset; None if it has problems, which are reported."""
    before = len(reader.problems)
    if not NAME.match(name):
        reader.problem(at, "the name of an upstream may have letters, digits, dots, hyphens and underscores only")
    values = reader.fields(fields_of(UpstreamTable), as_lists(tree, _LIST_SETTINGS), at)
    if not isinstance(tree, Mapping) or any(key in tree and key not in values for key in _BASIC_SETTINGS):
        return None  # The other settings depend on these.
    upstream = _UpstreamBuilder(UpstreamTable(**values), at, reader).upstream(name)
    return upstream if len(reader.problems) == before else None


def as_lists(tree: object, names: tuple[str, ...]) -> object:
    """Return the table with a single string in place of a list (`names`) replaced by a list of one."""
    if not isinstance(tree, Mapping):
        return tree
    return {name: [value] if name in names and isinstance(value, str) else value for name, value in tree.items()}


def _match_version(dialect: Dialect, base_url: str) -> tuple[Dialect, str]:
    """Return the dialect and the base URL such that their paths combine without a repeated version.

    A configured URL may end with /v1 or without it, as the SDKs differ; the paths of the dialect begin with /v1.
    Another path replaces /v1, as in OpenAI's own SDKs: some services have /v4, or no version.
    """
    path = dialect.binding.wrap(ApiRequest("generate", "model", False, {})).path
    version = "/" + path.lstrip("/").partition("/")[0]
    if version != path and base_url.endswith(version):
        return dialect, base_url.removesuffix(version)
    binding = dialect.binding
    if urlsplit(base_url).path and isinstance(binding, Struct) and "prefix" in binding.__struct_fields__:
        relayed = dialect.relayed and structs.replace(dialect.relayed, prefix="")
        return structs.replace(dialect, binding=structs.replace(binding, prefix=""), relayed=relayed), base_url
    return dialect, base_url


def _is_anthropic(base_url: str) -> bool:
    """Return whether the service is Anthropic's own, the only one that reads Claude Code's accounting line."""
    host = urlsplit(base_url).hostname or ""
    return host == "anthropic.com" or host.endswith(".anthropic.com")


class _UpstreamBuilder:
    """Builds an upstream from its table. Reports values that have the right type but are invalid."""

    def __init__(self, table: UpstreamTable, at: KeyPath, reader: ConfigReader) -> None:
        self._table = table
        self._at = at
        self._reader = reader

    def _problem(self, name: str, message: str, hint: str = "") -> None:
        self._reader.problem((*self._at, name) if name else self._at, message, hint)

    def upstream(self, name: str) -> Upstream | None:
        """Return the upstream; None if its dialect is unknown. Problems are reported to the reader."""
        table, dialect = self._table, self.dialect()
        simulated = table.preset == SIMULATOR
        address = "" if simulated or dialect is None else self.base_url(dialect)
        # All parts are read before the first return, so that all problems are reported at once.
        key_header, logins = self.key_header(dialect), self.logins()
        headers, settings = self.headers(), self.translation()
        proxy = self.proxy(address) if address else None
        if dialect is None:
            return None
        dialect, address = _match_version(dialect, address)
        if dialect.attribution and settings.attribution == "auto" and not (simulated or _is_anthropic(address)):
            settings = structs.replace(settings, attribution="strip")
        return Upstream(
            name=name,
            dialect=dialect,
            preset=table.preset or "",
            kind="simulator" if simulated else "http",
            base_url=address,
            region=table.region or "",
            keys=table.key,
            key_header=key_header,
            logins=logins,
            models=table.models,
            default_model=table.default_model or "",
            small_model=table.small_model or "",
            first_model=table.first_model,
            long_thinking=table.long_thinking,
            settings=settings,
            limits=table.limits,
            timeouts=table.timeouts,
            simulator=table.simulator,
            headers=headers,
            proxy=proxy,
            ca_file=None if simulated else self.ca_file(),
        )

    def dialect(self) -> Dialect | None:
        """Return the dialect with its settings; None if it is unknown or a setting is invalid."""
        table = self._table
        if table.preset is not None and table.preset not in PRESETS:
            known = suggest_name(table.preset, PRESETS) or f"known: {', '.join(PRESETS)}"
            self._problem("preset", f"there is no preset {table.preset!r}", known)
            return None
        if table.dialect is None:
            hint = f"presets: {', '.join(PRESETS)}; dialects: {', '.join(registry.names())}"
            self._problem("", "set a preset, or a dialect and a base_url", hint)
            return None
        if table.dialect not in registry.names():
            known = suggest_name(table.dialect, registry.names()) or f"known: {', '.join(registry.names())}"
            self._problem("dialect", f"there is no dialect {table.dialect!r}", known)
            return None
        return self._with_settings(registry.get(table.dialect))

    def _with_settings(self, dialect: Dialect) -> Dialect | None:
        reader, at = self._reader, (*self._at, "settings")
        codec = dialect.codec
        before = len(reader.problems)
        fields = fields_of(type(codec)) if isinstance(codec, Struct) else ()
        values = reader.fields(fields, self._table.settings, at)
        if len(reader.problems) > before:
            return None
        try:
            return configure_dialect(dialect, values)
        except LocalMisuse as error:
            reader.problem((*at, *([error.at] if error.at else [])), str(error).removeprefix(f"{error.at}: "))
            return None

    def base_url(self, dialect: Dialect) -> str:
        """Return the address of the service; empty if it is missing or invalid."""
        table = self._table
        if table.base_url is None:
            self._problem("", f"base_url is missing: set the address of the {dialect.name} service")
            return ""
        address = table.base_url
        if "{region}" in address:
            if table.region is None:
                self._problem(
                    "", "region is missing", 'set it, as in region = "us-east-1", or set the variable AWS_REGION'
                )
                return ""
            address = address.replace("{region}", table.region)
        if table.region is not None and not _REGION.match(table.region):
            self._problem("region", f"{table.region!r} is not a region", "write it as in us-east-1")
            return ""
        address = address.rstrip("/")
        problem = base_url_problem(address)
        if problem:
            self._problem("base_url", *problem)
            return ""
        url = urlsplit(address)
        if url.scheme == "http" and not is_loopback(url.hostname or "") and not table.insecure_http:
            hint = "use https, or set insecure_http = true if you trust the network to the service"
            self._problem("base_url", "http without TLS would show keys and prompts to the network", hint)
        return address

    def key_header(self, dialect: Dialect | None) -> str:
        """Return the lower-case name of the header for the key."""
        name = self._table.key_header
        if name is None:
            return dialect.key_header if dialect else ""
        if not _HEADER.match(name) or name.lower() in _RESERVED_HEADERS:
            self._problem(
                "key_header", f"the header {name!r} cannot contain a key", "use authorization, x-api-key or api-key"
            )
        return name.lower()

    def logins(self) -> tuple[Login, ...]:
        """Return the configured credential sources."""
        logins: list[Login] = []
        for text in self._table.credentials:
            source, _, detail = text.partition(":")
            known = next((known for known in get_args(LoginSource) if known == source), None)
            if known is None:
                hint = suggest_name(source, get_args(LoginSource)) or f"known: {', '.join(get_args(LoginSource))}"
                self._problem("credentials", f"there is no credential source {source!r}", hint)
            else:
                logins.append(Login(known, detail))
        return tuple(logins)

    def translation(self) -> TranslationSettings:
        """Return the translation settings, with an absolute path of a raw tool table file."""
        settings = self._table.translation
        known = ("auto", "off", *FORMAT_NAMES, *FORMAT_ALIASES)
        if settings.raw_tools is not None and is_file_choice(settings.raw_tools):
            context = self._reader.reference_context
            path = expand_path(settings.raw_tools.removeprefix(FILE_PREFIX), context.folder, context.home)
            return structs.replace(settings, raw_tools=f"{FILE_PREFIX}{path}")
        if settings.raw_tools is not None and settings.raw_tools not in known:
            hint = suggest_name(settings.raw_tools, known) or f"known: {', '.join(known)}, and file:NAME.toml"
            self._reader.problem(
                (*self._at, "translation", "raw_tools"), f"there is no raw tool format {settings.raw_tools!r}", hint
            )
        return settings

    def headers(self) -> tuple[tuple[str, ConfiguredSecret], ...]:
        """Return the configured extra headers."""
        headers: dict[str, ConfiguredSecret] = {}
        for name, value in self._table.headers.items():
            key = (*self._at, "headers", name)
            if not _HEADER.match(name) or name.lower() in _RESERVED_HEADERS:
                self._reader.problem(
                    key, "this header cannot be configured; the gateway sets it or its name is invalid"
                )
            elif not isinstance(value, str) or not _HEADER_VALUE.match(value):
                self._reader.problem(key, "expected a string of printable ASCII characters")
            else:
                secret = self._text(key, value, hidden=is_secret_header(name))
                if secret is not None:
                    headers[name.lower()] = secret
        return tuple(headers.items())

    def _text(self, key: KeyPath, value: str, *, hidden: bool) -> ConfiguredSecret | None:
        """Return the value of a setting that may be a reference, and must be one if it is `hidden`."""
        try:
            if hidden:
                return self._reader.secret(value, key)
            return self._reader.parse_reference(value) or plain_value(value)
        except InvalidValue as error:
            self._reader.problem(key, error.message, error.hint)
            return None

    def proxy(self, url: str) -> ConfiguredSecret | None:
        """Return the proxy for a URL: from the table, else from the environment."""
        proxy, key = self._table.proxy, (*self._at, "proxy")
        if proxy is None:
            variable = proxy_variable(url, self._reader.reference_context.environ)
            if variable is None:
                return None
            proxy = f"env:{variable}"
            self._proxy_scheme(key, self._reader.reference_context.environ[variable], f"set by {variable}; ")
        elif proxy == "off":
            return None
        elif "://" not in proxy and self._text(key, proxy, hidden=False) == plain_value(proxy):
            self._reader.problem(key, "expected http://HOST:PORT, a reference such as env:NAME, or off")
            return None
        self._proxy_scheme(key, proxy, "")
        return self._text(key, proxy, hidden="@" in proxy)

    def _proxy_scheme(self, key: KeyPath, address: str, source: str) -> None:
        scheme, separator, _ = address.partition("://")
        if separator and ":" not in scheme and scheme.lower() not in ("http", "https"):
            hint = f'{source}use an http proxy, or set proxy = "off" to use none'
            self._reader.problem(key, f"a {scheme} proxy is not supported", hint)

    def ca_file(self) -> Path | None:
        """Return the file of trusted certificates: from the table, else from SSL_CERT_FILE."""
        variable = self._reader.reference_context.environ.get("SSL_CERT_FILE")
        return self._table.ca_file or (Path(variable) if variable else None)


def base_url_problem(address: str) -> tuple[str, str] | None:
    """Return what is wrong with a base URL, and how to correct it; None if it is valid."""
    example = "write it as in https://api.example.com"
    try:
        url = urlsplit(address)
        host, _ = url.hostname, url.port
    except ValueError as error:
        return f"not a valid address: {error}", example
    if url.scheme not in ("http", "https") or not host or not re.fullmatch(r"[\x21-\x7e]+", address):
        return "expected an address that begins with https:// or http://", example
    if url.username is not None or url.password is not None:
        return (
            "a secret must not be written in the configuration",
            "put the secret into key or headers, as a reference such as env:NAME",
        )
    if url.query or url.fragment:
        return "the address must not have a query (?) or a fragment (#)", example
    return None


# --- raw tool table files


def with_table_files(upstreams: Mapping[str, Upstream], leaves: Leaves) -> dict[str, Upstream]:
    """Return the upstreams with the file of each `raw_tools = "file:…"` loaded. Raises ConfigError."""
    loaded, problems = dict(upstreams), []
    for name, upstream in upstreams.items():
        choice = upstream.settings.raw_tools
        if choice is None or not is_file_choice(choice):
            continue
        try:
            choice = load_table_file(Path(choice.removeprefix(FILE_PREFIX)))
        except TableFileError as error:
            key: KeyPath = ("upstreams", name, "translation", "raw_tools")
            leaf = leaves.get(key)
            problems.append(Problem(dotted_key(key), str(error), "", leaf.origin if leaf else DEFAULT))
        loaded[name] = structs.replace(upstream, settings=structs.replace(upstream.settings, raw_tools=choice))
    if problems:
        raise ConfigError(problems)
    return loaded
