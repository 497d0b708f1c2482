-- The ledger of requests, its sums, and the shares of processes. Times are seconds since the epoch; cost is in
-- nano-dollars, and NULL where the price is unknown. Texts that are unknown are ''.

CREATE TABLE ledger (
    request_id TEXT NOT NULL PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('open', 'ended')),
    opened_at REAL NOT NULL CHECK (opened_at >= 0 AND opened_at < 2e11),
    key TEXT NOT NULL,
    owner TEXT NOT NULL,
    client TEXT NOT NULL,
    dialect TEXT NOT NULL,
    operation TEXT NOT NULL,
    model TEXT NOT NULL,
    used_model TEXT NOT NULL,
    upstream TEXT NOT NULL,
    upstream_dialect TEXT NOT NULL,
    session TEXT NOT NULL,
    outcome TEXT NOT NULL,
    status INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL CHECK (input_tokens BETWEEN 0 AND 1000000000000),
    output_tokens INTEGER NOT NULL CHECK (output_tokens BETWEEN 0 AND 1000000000000),
    cache_read_tokens INTEGER NOT NULL CHECK (cache_read_tokens BETWEEN 0 AND 1000000000000),
    cache_write_tokens INTEGER NOT NULL CHECK (cache_write_tokens BETWEEN 0 AND 1000000000000),
    reasoning_tokens INTEGER NOT NULL CHECK (reasoning_tokens BETWEEN 0 AND 1000000000000),
    estimated INTEGER NOT NULL,
    cost INTEGER CHECK (cost BETWEEN 0 AND 1000000000000000),
    price_version TEXT NOT NULL,
    reserved_tokens INTEGER NOT NULL CHECK (reserved_tokens BETWEEN 0 AND 1000000000000),
    reserved_cost INTEGER NOT NULL CHECK (reserved_cost BETWEEN 0 AND 1000000000000000),
    first_byte_ms REAL,
    total_ms REAL NOT NULL,
    notes INTEGER NOT NULL,
    process INTEGER NOT NULL         -- that has the request
) WITHOUT ROWID;

CREATE INDEX ledger_time ON ledger (opened_at);
CREATE INDEX ledger_open ON ledger (process) WHERE state = 'open';

-- Sums of ended rows by day in the time zone of the store. The transaction that ends a row adds to them.
CREATE TABLE usage_day (
    day TEXT NOT NULL,               -- 2026-11-16
    model TEXT NOT NULL,             -- used_model, or model if that is unknown
    upstream TEXT NOT NULL,
    key TEXT NOT NULL,
    owner TEXT NOT NULL,
    requests INTEGER NOT NULL,
    counted INTEGER NOT NULL,        -- requests for which an upstream was asked
    failed INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cache_read_tokens INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    unpriced INTEGER NOT NULL,
    PRIMARY KEY (day, model, upstream, key, owner)
) WITHOUT ROWID;

CREATE INDEX usage_day_key ON usage_day (key, day);
CREATE INDEX usage_day_owner ON usage_day (owner, day);

-- What ended requests used of the limits of a scope. A row counts only for its own window and change of limits
-- (usage_limit.since); otherwise it is computed anew from usage_day.
CREATE TABLE used (
    scope TEXT NOT NULL,
    span TEXT NOT NULL CHECK (span IN ('day', 'month', 'ever')),
    begins REAL NOT NULL,
    since INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    PRIMARY KEY (scope, span)
) WITHOUT ROWID;

-- What was used of a limit a minute, as of a moment; it becomes less from then on.
CREATE TABLE used_minute (
    scope TEXT NOT NULL,
    resource TEXT NOT NULL,
    since INTEGER NOT NULL,
    used INTEGER NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (scope, resource)
) WITHOUT ROWID;

CREATE TABLE process (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    pid INTEGER NOT NULL,
    began_at REAL NOT NULL,
    heartbeat REAL NOT NULL
);

CREATE TABLE share (
    scope TEXT NOT NULL,
    resource TEXT NOT NULL,
    span TEXT NOT NULL,
    process INTEGER NOT NULL,
    begins REAL NOT NULL,            -- of the window in which it was granted
    amount INTEGER NOT NULL,         -- below zero: the process used more than it had
    PRIMARY KEY (scope, resource, span, process)
) WITHOUT ROWID;

-- time_zone: that of usage_day; deleted_before: the time before which rows of the ledger were deleted.
CREATE TABLE setting (
    name TEXT NOT NULL PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;
