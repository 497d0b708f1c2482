"""Check that no optional behaviour is looked up with `getattr` or `hasattr`: `python -m tests.check_getattr`, part of `make check`.

An optional ability is a protocol member with a default, or a field of `Dialect`, so that the type checker sees it.
Allowed are platform features (`hasattr(os, "geteuid")`), data fields read by name, and `flush` of a file-like object
that a user passes in.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLATFORM = frozenset({"os", "socket", "select", "signal", "ctypes", "threading"})
FIELDS = frozenset(
    {
        "__name__",
        "__struct_fields__",
        "at",
        "blocks",
        "cache",
        "content",
        "extra",
        "flush",
        "key",
        "signature",
        "strict",
    }
)


def places() -> Iterator[str]:
    """Yield every place in the sources where an ability is looked up by name."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("getattr", "hasattr")
            ):
                holder, name = node.args[0], node.args[1]
                is_platform = isinstance(holder, ast.Name) and holder.id in PLATFORM
                is_field = not isinstance(name, ast.Constant) or name.value in FIELDS
                if not (is_platform or is_field):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def main() -> int:
    """Print the places; return 1 if there is one."""
    found = list(places())
    for place in found:
        print(f"{place}  (make it a member of its protocol with a default)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
