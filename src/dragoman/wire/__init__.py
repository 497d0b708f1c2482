"""Bytes and text on the wire: frames, server-sent events, AWS event streams, JSON, and HTTP messages as plain values.

Pure: no I/O. The package knows nothing about LLMs and imports only `errors`; every other package may import it.
"""
