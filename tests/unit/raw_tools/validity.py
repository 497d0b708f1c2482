"""The share of calls whose arguments are valid for their tool's schema, for every format.

Run it: `python -m tests.unit.raw_tools.measure_validity [CALLS]`. Calls are generated from generated schemas, written as a model
writes them in the format, and read by the engine with that format's table.
"""

from __future__ import annotations

import json
import random
import sys

from dragoman.filters.raw_tools.outputs import Arguments
from dragoman.wire.jsonio import Json
from tests.unit.raw_tools.renderers import GEMMA, PYTHON, RENDER, CallToWrite
from tests.unit.raw_tools.samples import outputs
from tests.unit.raw_tools.schemas import arguments_of, is_valid, tool_schema


def measure_validity(table: str, calls: int, seed: int = 16) -> tuple[float, float]:
    """Return the shares of generated calls that come out valid, and equal to what was written."""
    rng = random.Random(f"{table} {seed}")
    valid = equal = 0
    for _ in range(calls):
        schema = tool_schema(rng)
        call = CallToWrite("f", arguments_of(rng, schema), schema, id="abcdef123")
        while table in {**PYTHON, **GEMMA} and not _has_plain_keys(call.arguments):
            schema = tool_schema(rng)
            call = CallToWrite("f", arguments_of(rng, schema), schema, id="abcdef123")
        emitted = outputs([RENDER[table]([call])], table, [call.tool])
        texts = [output.text for output in emitted if isinstance(output, Arguments)]
        try:
            found = json.loads("".join(texts))
        except ValueError:
            continue
        valid += is_valid(found, schema, schema)
        equal += found == call.arguments
    return valid / calls, equal / calls


def _has_plain_keys(value: Json) -> bool:
    """Whether all keys are names, as formats without quotes around keys need it."""
    if isinstance(value, dict):
        return all(key.isidentifier() and _has_plain_keys(each) for key, each in value.items())
    return not isinstance(value, list) or all(map(_has_plain_keys, value))


def main() -> None:
    calls = int(sys.argv[1]) if sys.argv[1:] else 1000
    shares = {table: measure_validity(table, calls) for table in RENDER}
    print(f"{'format':16} {'valid':>8} {'equal':>8}   of {calls} calls each")
    for table, (valid, equal) in shares.items():
        print(f"{table:16} {valid:8.2%} {equal:8.2%}")
    total = [sum(share[at] for share in shares.values()) / len(shares) for at in (0, 1)]
    print(f"{'all':16} {total[0]:8.2%} {total[1]:8.2%}")


if __name__ == "__main__":
    main()
