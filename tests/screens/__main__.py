"""`python -m tests.screens`: write the screens anew. Read the diff before you commit it."""

from __future__ import annotations

from tests.screens import FOLDER, all_screens

screens = all_screens()
for old in FOLDER.glob("*.txt"):
    if old.name not in screens:
        old.unlink()
for name, text in screens.items():
    (FOLDER / name).write_text(text)
print(f"{len(screens)} screens written to {FOLDER}")
