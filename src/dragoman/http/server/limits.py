"""What the server allows a connection, and what it answers to bytes that break these limits."""

from __future__ import annotations

from dragoman.http.framing import plain_refusal

HEAD_SECONDS = 10.0
IDLE_SECONDS = 75.0
SWEEP_SECONDS = 0.25
MOST_HEADERS = 100
LONGEST_HEAD = 32 * 1024
LONGEST_TARGET = 8 * 1024
HEAD_BYTES = LONGEST_HEAD + LONGEST_TARGET  # of an unfinished head; a finished one is counted exactly, by the guard
MOST_PIPELINED = 16  # requests that wait for the answer to the one before them

BAD_REQUEST = plain_refusal(400)
TOO_SLOW = plain_refusal(408)
TARGET_TOO_LONG = plain_refusal(414)
HEAD_TOO_LONG = plain_refusal(431)
