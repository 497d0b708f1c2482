"""Accounts: client keys, limits, prices and the ledger, as the gateway uses them.

`keys` makes and checks keys; `shares` counts requests against limits in memory; `book` finds the account of a key and
keeps it in step with the store; `prices` knows what tokens cost. The gateway imports the package only if its
configuration has a store, except for `account`. Only `book` does I/O, through `dragoman.store`.
"""
