"""The store of accounts: client keys, limits, the ledger of requests, and what has been used.

`interface` has the values and the protocol `Store`, which every engine implements; the gateway and the command line use
no engine in another way. `sqlite` is the engine for one machine. The package knows nothing of HTTP and dialects. It
reads and writes files in one private folder.
"""
