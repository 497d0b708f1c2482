"""The engine for one machine: SQLite, two files in a private folder, shared by all processes of the gateway.

engine         `SqliteStore`, the store as the gateway uses it: asynchronous, over one thread that writes
core           `SqliteCore`, the same operations as plain functions, each in one transaction
files          the folder, the lock that every write holds, connections, and what errors of SQLite mean
schema         numbered migrations
keys           client keys, limits and changes: `keys.db`, where every write reaches the disk before it returns
ledger         rows of requests and sums by day: `ledger.db`, which may lose the last writes in a power failure only
counters       what was used of limits
shares         shares of processes, and grants
maintenance    checks, repairs, and the rows of killed processes

Only a configured store imports this package, because it imports `sqlite3`.
"""
