"""Tests of the pages: their Python runs and type-checks, and docs/library.md lists the whole public API."""
