"""The codecs alone, one after the other: `make bench-codecs`. Exits with 1 if one of them exceeds its limit."""

from __future__ import annotations

import sys

from bench.codecs import raw_tools, streams, wire


def main() -> int:
    """Run the benchmarks; return 1 if one misses its limit."""
    missed = 0
    for title, bench in (("wire codecs", wire.main), ("streams", streams.main), ("raw tool calls", raw_tools.main)):
        print(f"\n=== {title}\n", flush=True)
        missed += bench() != 0
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
