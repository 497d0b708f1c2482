"""The exchange that the gateway answers: an HTTP exchange with the gateway's account of memory."""

from __future__ import annotations

from typing import TypeAlias

from dragoman.gateway.limits import Account
from dragoman.http import exchange

Exchange: TypeAlias = exchange.Exchange[Account]
