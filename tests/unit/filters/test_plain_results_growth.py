"""S3: very many images in the results of one turn are lifted out of them in linear time."""

from __future__ import annotations

import dragoman.dialects as registry
from dragoman.translate import Settings, plan
from dragoman.wire.jsonio import Json
from tests.growth import Work, grows_linearly

IMAGE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def with_images(count: int) -> Work:
    client, target = registry.get("anthropic"), registry.get("openai")
    call: Json = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    result: Json = {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE] * count}
    talk: Json = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    asked = client.codec.parse_request(client.binding.unwrap({"model": "m", "max_tokens": 1, "messages": talk}))
    return lambda: plan(client, target, asked, model="m", settings=Settings())


def test_s3_images_in_results_are_counted_once() -> None:
    grows_linearly(with_images, 100)
