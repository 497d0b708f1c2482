"""Run the command line: `python -m dragoman`."""

from __future__ import annotations

import sys

from dragoman.cli import main

sys.exit(main())
