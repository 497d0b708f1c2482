"""How much a test explores: a fixed, representative part in `make test`, all of it in `make laws-long`."""

from __future__ import annotations

from hypothesis import settings

IS_LONG_RUN = settings.get_current_profile_name() == "long"
"""Whether this is `make laws-long`."""
