"""Rewrite the generated files of all stories: `python -m tests.stories`."""

from __future__ import annotations

from tests.stories.telling import stories, tell

for story in stories():
    for name, data in tell(story).items():
        (story.folder / name).write_bytes(data)
    print(story)
