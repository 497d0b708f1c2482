-- Client keys, limits, and the changes of both. Times are seconds since the epoch.

CREATE TABLE client_key (
    id TEXT NOT NULL PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,     -- SHA-256 of the whole key
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    models TEXT NOT NULL,            -- a JSON array; empty: all
    upstreams TEXT NOT NULL,         -- a JSON array; empty: all
    created_at REAL NOT NULL,
    expires_at REAL,
    revoked_at REAL,
    replaces TEXT NOT NULL,          -- the id of another key, or ''
    revision INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE usage_limit (
    scope TEXT NOT NULL,             -- key:ID, owner:NAME or all
    resource TEXT NOT NULL CHECK (resource IN ('requests', 'tokens', 'cost', 'concurrency')),
    span TEXT NOT NULL CHECK (span IN ('minute', 'day', 'month', 'ever', 'now')),
    amount INTEGER NOT NULL CHECK (amount >= 0),
    since INTEGER NOT NULL,          -- the change with which this scope got its first limit of this span
    PRIMARY KEY (scope, span, resource)
) WITHOUT ROWID;

CREATE TABLE change (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    what TEXT NOT NULL,              -- key:ID for a key, else the scope of limits
    at REAL NOT NULL
);
