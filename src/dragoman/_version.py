"""The version, alone in a file that imports nothing: the build reads it, and `dragoman --version` stays fast."""

__version__ = "0.1.0"
