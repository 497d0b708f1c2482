"""Kiro logins: token stores, refresh, device login, profiles and quota.

The gateway's backends and `dragoman auth` call it. It reads the logins of this machine, writes our own, and sends
requests to the sign-in services through a `Fetch`.
"""

from __future__ import annotations

from dragoman.upstream.kiro.credential import KiroCredential
from dragoman.upstream.kiro.finding import Found, Places, find, open_store
from dragoman.upstream.kiro.service import Profile, Usage, list_profiles, usage_limits
from dragoman.upstream.kiro.sign_in import DeviceLogin, Prompt
from dragoman.upstream.kiro.stores import IdeStore, KeyStore, OwnStore, Store
from dragoman.upstream.kiro.token import Endpoints, Token

__all__ = [
    "DeviceLogin",
    "Endpoints",
    "Found",
    "IdeStore",
    "KeyStore",
    "KiroCredential",
    "OwnStore",
    "Places",
    "Profile",
    "Prompt",
    "Store",
    "Token",
    "Usage",
    "find",
    "list_profiles",
    "open_store",
    "usage_limits",
]
