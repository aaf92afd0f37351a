-- Which migrations a database has. Run before every check of it; changes nothing where it has been run.

CREATE SCHEMA IF NOT EXISTS driftq;

CREATE TABLE IF NOT EXISTS driftq.migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    -- Of the file as it was applied: a file that was changed afterwards is noticed.
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
