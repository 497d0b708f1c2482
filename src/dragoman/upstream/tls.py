"""TLS to an upstream, always verified: by `ca_file` alone, else by SSL_CERT_FILE and the system, as OpenSSL reads."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from dragoman.errors import LocalMisuse


class Tls(Struct, frozen=True):
    """What one upstream needs beside the default. There is no way to turn verification off."""

    ca_file: str = ""
    server_name: str = ""  # asked for and verified instead of the URL's host


def context_for(tls: Tls) -> ssl.SSLContext:
    """Give the context of these settings, made once. Raises LocalMisuse naming a file that cannot be read."""
    return _context(tls.ca_file, "" if tls.ca_file else os.environ.get("SSL_CERT_FILE", ""))


@lru_cache(maxsize=64)
def _context(ca_file: str, from_environment: str) -> ssl.SSLContext:
    named = ca_file or from_environment
    # OpenSSL reads SSL_CERT_FILE by itself, but when the file is missing it trusts nobody and says nothing.
    if named and not Path(named).is_file():
        raise LocalMisuse(f"the file of certificate authorities {named} does not exist (ca_file or SSL_CERT_FILE)")
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise LocalMisuse(f"the file of certificate authorities {named} cannot be read: {error}") from error
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    context.set_alpn_protocols(["http/1.1"])
    return context
