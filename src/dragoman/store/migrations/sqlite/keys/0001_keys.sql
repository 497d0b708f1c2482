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
    revision INTEGER NOT NULL,       -- grows when the secret is replaced
    former_digest BLOB NOT NULL,     -- of the secret before; empty: none is accepted
    former_until REAL NOT NULL       -- until when it is accepted
) WITHOUT ROWID;

CREATE UNIQUE INDEX client_key_former ON client_key (former_digest) WHERE former_digest <> x'';

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
