"""Google's SDK, which runs the tool loop itself: `python -m tests.clients.loops.google_genai HOW...`."""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import sys

from tests.clients.loops.common import KEY, MODEL, PROMPT, URL, copy


def main(hows: list[str]) -> None:
    from google import genai
    from google.genai import types

    client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=URL))
    config = types.GenerateContentConfig(tools=[copy])
    for how in hows:
        if how == "stream":
            pieces = client.models.generate_content_stream(model=MODEL, contents=PROMPT, config=config)
            print("".join(piece.text or "" for piece in pieces))
        else:
            print(client.models.generate_content(model=MODEL, contents=PROMPT, config=config).text)


if __name__ == "__main__":
    main(sys.argv[1:])
