"""Tests of the store of accounts: the protocol, the SQLite engine, and processes that are killed while they write."""
