"""Rewrite the generated files of all stories: `python -m tests.stories`."""

from __future__ import annotations

from tests.stories.story import render_story, stories

for story in stories():
    for name, data in render_story(story).items():
        (story.folder / name).write_bytes(data)
    print(story)
