"""Filters that only this dialect needs. A filter's `before` says which shared one must find its work done."""
