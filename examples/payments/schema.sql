-- The tables of the payment service. Those of the store of effects are in the schema `driftq`, made by its migrations.

CREATE TABLE accounts (
    id text PRIMARY KEY,
    cents bigint NOT NULL CHECK (cents >= 0),
    -- Counts the changes of the account.
    version bigint NOT NULL DEFAULT 0
);

-- `payment` would be unique in a service in production: a second barrier costs little. Here it is not, so that the
-- audit sees a payment that was made twice.
CREATE TABLE transfers (
    payment text NOT NULL,
    payer text NOT NULL REFERENCES accounts,
    payee text NOT NULL REFERENCES accounts,
    cents bigint NOT NULL CHECK (cents > 0)
);

-- Payments that failed for now. Their messages are acked; the retry worker has them.
CREATE TABLE postponed (
    -- That of the payment's effect.
    key text PRIMARY KEY,
    command json NOT NULL
);

-- Messages that are part of a transaction. A relay produces them after its commit.
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL,
    key text NOT NULL,
    value json NOT NULL
);
