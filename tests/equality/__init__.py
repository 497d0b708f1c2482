"""Whether every translation gives the same bytes as at another commit: `python -m tests.equality --against REV`."""
