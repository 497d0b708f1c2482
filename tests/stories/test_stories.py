"""Every story translates to exactly the content of its files."""

from __future__ import annotations

import pytest

from tests.stories.story import Story, render_story, stories


@pytest.mark.parametrize("story", stories(), ids=str)
def test_story_files_are_up_to_date(story: Story) -> None:
    told = render_story(story)
    written = {name: (story.folder / name).read_bytes() for name in told if (story.folder / name).exists()}
    assert told == written, "run `python -m tests.stories` and read the diff"
    by_hand = {"story.md", f"{story.asked}.request.json", f"{story.answered}.stream"}
    assert {path.name for path in story.folder.iterdir()} == told.keys() | by_hand
