"""Filters that only this service needs, for rules that no shared filter covers."""
