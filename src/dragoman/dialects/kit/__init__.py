"""Code that several dialects share, so that dialects never import or copy one another. Pure.

Everything here is pure. Differences between dialects are arguments. Dialects may import any module of this package;
the package imports no dialect (import contracts in pyproject.toml).
"""
