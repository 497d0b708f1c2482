"""Every story translates to exactly the content of its files."""

from __future__ import annotations

import pytest

from tests.stories.story import Story, render_story, stories


@pytest.mark.parametrize("story", stories(), ids=str)
def test_story_files_are_up_to_date(story: Story) -> None:
    files = render_story(story)
    written = {name: (story.folder / name).read_bytes() for name in files if (story.folder / name).exists()}
    assert files == written, "run `python -m tests.stories` and read the diff"
    by_hand = {"story.md", f"{story.client}.request.json", f"{story.upstream}.stream"}
    assert {path.name for path in story.folder.iterdir()} == files.keys() | by_hand
