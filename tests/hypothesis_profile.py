"""Whether tests explore everything (`make laws-long`) or a fixed, representative part (`make test`)."""

from __future__ import annotations

from hypothesis import settings

IS_LONG_RUN = settings.get_current_profile_name() == "long"
"""Whether this is `make laws-long`."""
