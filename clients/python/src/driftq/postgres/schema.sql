-- The schema of the store, for an empty database: psql -f schema.sql. Made of the migrations by
-- `python -m driftq.postgres schema`; `migrate` leaves a database that has it as it is.

BEGIN;
SELECT pg_advisory_xact_lock(110442557371505);

-- Which migrations a database has. Run before every check of it; changes nothing where it has been run.

CREATE SCHEMA IF NOT EXISTS driftq;

CREATE TABLE IF NOT EXISTS driftq.migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    -- Of the file as it was applied: a file that was changed afterwards is noticed.
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- Effects, and the functions that grant and end them: every decision is one call, the same in every language. For what
-- is ordinary clients first send statements of their own, the files beside the migrations. They change what the
-- functions would, or nothing at all where is_identity is false: a migration that replaces it turns them off.
--
-- Refusals are errors, so that a transaction in which one happens cannot commit:
--   QD400 invalid, QD404 the effect is not known, QD409 conflict, QD410 stale lease, QD422 another request hash.
-- All times are those of the server: UTC, in microseconds.

CREATE TABLE driftq.effects (
    tenant text COLLATE "C" NOT NULL,
    scope_kind text COLLATE "C" NOT NULL CHECK (scope_kind IN ('consume', 'tenant', 'job', 'task', 'rpc')),
    -- consume: the topic; job and task: the id; rpc: the principal.
    scope_id text COLLATE "C" NOT NULL,
    -- consume: the group; rpc: the method.
    scope_detail text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL CHECK (key <> ''),
    status text COLLATE "C" NOT NULL
        CHECK (status IN ('IN_PROGRESS', 'SUCCEEDED', 'FAILED_FINAL', 'FAILED_RETRYABLE')),
    attempt integer NOT NULL CHECK (attempt > 0),
    -- That of the newest grant: its time in microseconds since 1970, later than that of every earlier grant of the row,
    -- and the nonce of the call that asked for it.
    lease_token text COLLATE "C" NOT NULL CHECK (length(lease_token) = 32),
    lease_until timestamptz NOT NULL,
    owner text NOT NULL,
    -- The delivery that the newest grant was made for.
    delivery_partition bigint,
    delivery_offset bigint,
    delivery_token text COLLATE "C",
    -- That of the first begin.
    request_hash text COLLATE "C",
    response_code bigint NOT NULL DEFAULT 0,
    -- Not jsonb: a result is returned as it was written.
    result json,
    last_error text NOT NULL DEFAULT '',
    -- How long the effect is kept after its end, or until when at least.
    ttl_ms bigint NOT NULL CHECK (ttl_ms >= 0),
    keep_until timestamptz,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL CHECK (expires_at >= lease_until OR status <> 'IN_PROGRESS'),
    CONSTRAINT effects_pkey PRIMARY KEY (tenant, scope_kind, scope_id, scope_detail, key)
);

COMMENT ON TABLE driftq.effects IS 'Effects that happen once. Changed by clients of DriftQ only.';

-- When an effect that ended at a time, or whose lease did, is forgotten.
CREATE FUNCTION driftq.expiry(p_end timestamptz, p_ttl_ms bigint, p_keep_until timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_keep_until IS NULL THEN p_end + p_ttl_ms * interval '1 millisecond'
                ELSE greatest(p_keep_until, p_end) END
$$;

CREATE FUNCTION driftq.rfc3339(p_time timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT to_char(p_time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- The length of a lease: 30 s where none is asked for, held between 100 ms and 12 h.
CREATE FUNCTION driftq.lease_length(p_lease_ms bigint) RETURNS interval
LANGUAGE sql STABLE AS $$
    SELECT least(greatest(coalesce(nullif(p_lease_ms, 0), 30000), 100), 43200000) * interval '1 millisecond'
$$;

-- Whether texts are an identity that can be stored. Inlined where it is used, as the functions above are.
CREATE FUNCTION driftq.is_identity(
    p_tenant text, p_scope_kind text, p_scope_id text, p_scope_detail text, p_key text
) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(
        CASE p_scope_kind
            WHEN 'consume' THEN p_scope_id <> '' AND p_scope_detail <> ''
            WHEN 'rpc' THEN p_scope_id <> '' AND p_scope_detail <> ''
            WHEN 'job' THEN p_scope_id <> '' AND p_scope_detail = ''
            WHEN 'task' THEN p_scope_id <> '' AND p_scope_detail = ''
            WHEN 'tenant' THEN p_scope_id = '' AND p_scope_detail = ''
        END
        AND octet_length(p_tenant) <= 255 AND octet_length(p_scope_id) <= 255 AND octet_length(p_scope_detail) <= 255
        AND octet_length(p_key) <= 255,
        false)
$$;

CREATE FUNCTION driftq.refuse(p_state text, p_message text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = p_state, MESSAGE = p_message;
END
$$;

-- Refuses what is no identity. Sees to it that the transaction is committed durably, whatever the session has set: a
-- server that answers before a commit is on disk would grant an effect again that it has granted before a crash.
CREATE FUNCTION driftq.check_identity(
    p_tenant text, p_scope_kind text, p_scope_id text, p_scope_detail text, p_key text
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF NOT driftq.is_identity(p_tenant, p_scope_kind, p_scope_id, p_scope_detail, p_key) THEN
        PERFORM driftq.refuse('QD400', 'a scope is consume, tenant, job, task or rpc; it has no other fields than '
            'those of its kind, they are not empty, and no text has more than 255 bytes');
    END IF;
END
$$;

-- The token of a grant: newer than the one given, if one is.
CREATE FUNCTION driftq.new_token(p_now timestamptz, p_nonce text, p_older text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT lpad(to_hex(greatest(
        (extract(epoch FROM p_now) * 1000000)::bigint,
        ('x' || left(p_older, 16))::bit(64)::bigint + 1
    )), 16, '0') || p_nonce
$$;

-- The nonce of a call that brings none.
CREATE FUNCTION driftq.new_nonce() RETURNS text
LANGUAGE sql AS $$
    SELECT right(replace(gen_random_uuid()::text, '-', ''), 16)
$$;

-- Refuses a begin that is invalid, as check_identity does.
CREATE FUNCTION driftq.check_begin(
    p_tenant text, p_scope_kind text, p_scope_id text, p_scope_detail text, p_key text, p_owner text, p_ttl_ms bigint,
    p_keep_until timestamptz, p_request_hash text, p_on_expired text, p_delivery_token text
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM driftq.check_identity(p_tenant, p_scope_kind, p_scope_id, p_scope_detail, p_key);
    IF coalesce(octet_length(p_owner), 0) NOT BETWEEN 1 AND 255 OR octet_length(p_request_hash) > 255 THEN
        PERFORM driftq.refuse('QD400', 'an owner has 1 to 255 bytes, a request hash at most 255');
    END IF;
    IF p_on_expired NOT IN ('take_over', 'report') THEN
        PERFORM driftq.refuse('QD400', 'on_expired is take_over or report');
    END IF;
    IF p_ttl_ms < 0 OR (p_ttl_ms IS NOT NULL AND p_keep_until IS NOT NULL) THEN
        PERFORM driftq.refuse('QD400', 'an effect has a ttl of at least 0 or a time of expiry');
    END IF;
    IF p_keep_until <= clock_timestamp() THEN
        PERFORM driftq.refuse('QD400', 'expires_at has passed');
    END IF;
    IF p_delivery_token IS NOT NULL AND p_scope_kind <> 'consume' THEN
        PERFORM driftq.refuse('QD400', 'a delivery goes with a consume scope');
    END IF;
END
$$;

-- Begins an effect. `decision` is EXECUTE, REPLAY, IN_PROGRESS or RETRYABLE. A call repeated with the same nonce gets
-- the same grant, as long as its lease runs: an answer that was lost costs nothing.
CREATE FUNCTION driftq.begin_effect(
    p_tenant text, p_scope_kind text, p_scope_id text, p_scope_detail text, p_key text, p_owner text,
    p_lease_ms bigint DEFAULT 0, p_ttl_ms bigint DEFAULT NULL, p_keep_until timestamptz DEFAULT NULL,
    p_request_hash text DEFAULT NULL, p_on_expired text DEFAULT NULL,
    p_delivery_partition bigint DEFAULT NULL, p_delivery_offset bigint DEFAULT NULL,
    p_delivery_token text DEFAULT NULL, p_nonce text DEFAULT NULL,
    OUT decision text, OUT status text, OUT attempt integer, OUT lease_token text, OUT lease_until text,
    OUT idempotent boolean, OUT result text, OUT response_code bigint, OUT last_error text, OUT retry_after_ms bigint
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    -- A row that another transaction has locked is about to be granted or finished.
    locked_retry_ms CONSTANT bigint := 100;
    nonce text := coalesce(p_nonce, driftq.new_nonce());
    tenant_or_default text;
    on_expired text;
    now_at timestamptz;
    leased_until timestamptz;
    token text;
    known driftq.effects%ROWTYPE;
    is_locked boolean;
    is_same_message boolean;
BEGIN
    -- Each expression costs time in each transaction: a new effect is granted in as few as possible.
    IF (driftq.is_identity(p_tenant, p_scope_kind, p_scope_id, p_scope_detail, p_key)
        AND octet_length(p_owner) BETWEEN 1 AND 255
        AND num_nonnulls(p_ttl_ms, p_keep_until, p_request_hash, p_on_expired, p_delivery_token) = 0
        AND current_setting('synchronous_commit') <> 'off') IS NOT TRUE
    THEN
        PERFORM driftq.check_begin(p_tenant, p_scope_kind, p_scope_id, p_scope_detail, p_key, p_owner, p_ttl_ms,
            p_keep_until, p_request_hash, p_on_expired, p_delivery_token);
    END IF;
    LOOP
        IF is_locked THEN
            now_at := clock_timestamp();
            SELECT e.* INTO known FROM driftq.effects AS e
                WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
                    = (tenant_or_default, p_scope_kind, p_scope_id, p_scope_detail, p_key)
                FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                decision := 'IN_PROGRESS';
                retry_after_ms := locked_retry_ms;
                RETURN;
            END IF;
        ELSE
            -- Not without looking first: the insert would wait for a transaction that is finishing the effect.
            INSERT INTO driftq.effects AS e (
                tenant, scope_kind, scope_id, scope_detail, key, status, attempt, lease_token, lease_until,
                owner, delivery_partition, delivery_offset, delivery_token, request_hash, ttl_ms, keep_until,
                created_at, updated_at, expires_at
            ) SELECT
                f.tenant, p_scope_kind, p_scope_id, p_scope_detail, p_key, 'IN_PROGRESS', 1,
                driftq.new_token(f.now_at, nonce, NULL), f.now_at + driftq.lease_length(p_lease_ms), p_owner,
                p_delivery_partition, p_delivery_offset, p_delivery_token, p_request_hash, f.ttl_ms, p_keep_until,
                f.now_at, f.now_at,
                driftq.expiry(f.now_at + driftq.lease_length(p_lease_ms), f.ttl_ms, p_keep_until)
            FROM (
                SELECT coalesce(nullif(p_tenant, ''), 'default') AS tenant, clock_timestamp() AS now_at,
                    coalesce(p_ttl_ms, CASE WHEN p_scope_kind IN ('job', 'task') THEN 604800000 ELSE 86400000 END)
                        AS ttl_ms
            ) AS f
            WHERE p_key <> '' AND NOT EXISTS (
                SELECT FROM driftq.effects AS k
                    WHERE (k.tenant, k.scope_kind, k.scope_id, k.scope_detail, k.key)
                        = (f.tenant, p_scope_kind, p_scope_id, p_scope_detail, p_key)
            )
            ON CONFLICT ON CONSTRAINT effects_pkey DO NOTHING
            RETURNING 'EXECUTE', e.status, e.attempt, e.lease_token, driftq.rfc3339(e.lease_until), true
                INTO decision, status, attempt, lease_token, lease_until, idempotent;
            IF FOUND THEN
                RETURN;
            END IF;
            tenant_or_default := coalesce(nullif(p_tenant, ''), 'default');
            on_expired := coalesce(p_on_expired, CASE p_scope_kind WHEN 'rpc' THEN 'report' ELSE 'take_over' END);
            now_at := clock_timestamp();
            -- With an empty key nothing is stored, and every begin is granted.
            IF p_key = '' THEN
                decision := 'EXECUTE';
                status := 'IN_PROGRESS';
                attempt := 1;
                lease_token := driftq.new_token(now_at, nonce, NULL);
                lease_until := driftq.rfc3339(now_at + driftq.lease_length(p_lease_ms));
                idempotent := false;
                RETURN;
            END IF;
            SELECT e.* INTO known FROM driftq.effects AS e
                WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
                    = (tenant_or_default, p_scope_kind, p_scope_id, p_scope_detail, p_key);
            -- Removed in between.
            CONTINUE WHEN NOT FOUND;
        END IF;
        IF known.expires_at <= now_at THEN
            DELETE FROM driftq.effects AS e
                WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
                    = (known.tenant, known.scope_kind, known.scope_id, known.scope_detail, known.key)
                    AND e.lease_token = known.lease_token AND e.expires_at = known.expires_at;
            is_locked := false;
            CONTINUE;
        END IF;
        IF known.request_hash <> p_request_hash THEN
            PERFORM driftq.refuse('QD422', 'the key was used for another request');
        END IF;
        status := known.status;
        attempt := known.attempt;
        last_error := known.last_error;
        IF known.status IN ('SUCCEEDED', 'FAILED_FINAL') THEN
            decision := 'REPLAY';
            result := known.result::text;
            response_code := known.response_code;
            RETURN;
        END IF;
        is_same_message := coalesce((known.delivery_partition, known.delivery_offset)
            = (p_delivery_partition, p_delivery_offset), false);
        -- Tokens of deliveries are texts of one length whose order is their age.
        IF is_same_message AND p_delivery_token < known.delivery_token THEN
            PERFORM driftq.refuse('QD410', 'stale lease');
        END IF;
        IF known.status = 'IN_PROGRESS' AND known.lease_until > now_at THEN
            IF right(known.lease_token, 16) = nonce THEN
                decision := 'EXECUTE';
                lease_token := known.lease_token;
                lease_until := driftq.rfc3339(known.lease_until);
                idempotent := true;
                RETURN;
            END IF;
            -- A newer delivery of the same message has fenced the holder of the grant.
            IF NOT is_same_message OR p_delivery_token IS NOT DISTINCT FROM known.delivery_token THEN
                decision := 'IN_PROGRESS';
                retry_after_ms := ceil(extract(epoch FROM known.lease_until - now_at) * 1000)::bigint;
                RETURN;
            END IF;
        ELSIF known.status = 'IN_PROGRESS' AND on_expired = 'report' THEN
            decision := 'RETRYABLE';
            last_error := 'lease_expired';
            RETURN;
        ELSIF known.status = 'FAILED_RETRYABLE' AND p_scope_kind = 'rpc' THEN
            decision := 'RETRYABLE';
            RETURN;
        END IF;
        EXIT WHEN is_locked;
        -- It can be granted: the same again, with the row locked.
        is_locked := true;
    END LOOP;
    token := driftq.new_token(now_at, nonce, known.lease_token);
    leased_until := now_at + driftq.lease_length(p_lease_ms);
    UPDATE driftq.effects AS e SET
        status = 'IN_PROGRESS', attempt = known.attempt + 1, lease_token = token, lease_until = leased_until,
        owner = p_owner, delivery_partition = p_delivery_partition, delivery_offset = p_delivery_offset,
        delivery_token = p_delivery_token, result = NULL,
        ttl_ms = coalesce(p_ttl_ms, known.ttl_ms),
        keep_until = CASE WHEN p_ttl_ms IS NULL THEN coalesce(p_keep_until, known.keep_until) END,
        updated_at = now_at,
        expires_at = driftq.expiry(leased_until, coalesce(p_ttl_ms, known.ttl_ms),
            CASE WHEN p_ttl_ms IS NULL THEN coalesce(p_keep_until, known.keep_until) END)
        WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
            = (known.tenant, known.scope_kind, known.scope_id, known.scope_detail, known.key);
    decision := 'EXECUTE';
    status := 'IN_PROGRESS';
    attempt := known.attempt + 1;
    lease_token := token;
    lease_until := driftq.rfc3339(leased_until);
    idempotent := true;
END
$$;

-- Records the outcome of the grant with this token. The same outcome again changes nothing.
--
-- In a transaction of the caller's, the outcome and what else the transaction writes are committed together or not at
-- all. There `p_is_first` must be true: the same outcome again is a conflict then, or a transaction repeated because
-- the answer of its commit was lost would write everything else twice.
CREATE FUNCTION driftq.finish_effect(
    p_tenant text, p_scope_kind text, p_scope_id text, p_scope_detail text, p_key text, p_lease_token text,
    p_status text, p_result text DEFAULT NULL, p_response_code bigint DEFAULT 0, p_last_error text DEFAULT '',
    p_is_first boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    now_at timestamptz := clock_timestamp();
    known driftq.effects%ROWTYPE;
BEGIN
    IF (driftq.is_identity(p_tenant, p_scope_kind, p_scope_id, p_scope_detail, p_key)
        AND p_status IN ('SUCCEEDED', 'FAILED_FINAL', 'FAILED_RETRYABLE')
        AND coalesce(octet_length(p_result), 0) <= 65536 AND coalesce(octet_length(p_last_error), 0) <= 4096
        AND current_setting('synchronous_commit') <> 'off') IS NOT TRUE
    THEN
        PERFORM driftq.check_identity(p_tenant, p_scope_kind, p_scope_id, p_scope_detail, p_key);
        IF octet_length(p_result) > 65536 OR octet_length(p_last_error) > 4096 THEN
            PERFORM driftq.refuse('QD400', 'a result has at most 65536 bytes, an error 4096');
        END IF;
        IF p_status IS NULL OR p_status NOT IN ('SUCCEEDED', 'FAILED_FINAL', 'FAILED_RETRYABLE') THEN
            PERFORM driftq.refuse('QD400', 'an effect ends as SUCCEEDED, FAILED_FINAL or FAILED_RETRYABLE');
        END IF;
    END IF;
    -- The optimistic lock: a grant that has ended, or that is not the newest, changes nothing.
    UPDATE driftq.effects AS e SET
        status = p_status, result = nullif(p_result, 'null')::json, response_code = coalesce(p_response_code, 0),
        last_error = coalesce(p_last_error, ''), updated_at = now_at,
        expires_at = driftq.expiry(now_at, e.ttl_ms, e.keep_until)
        WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
            = (coalesce(nullif(p_tenant, ''), 'default'), p_scope_kind, p_scope_id, p_scope_detail, p_key)
            AND e.status = 'IN_PROGRESS' AND e.lease_token = p_lease_token AND e.expires_at > now_at;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT e.* INTO known FROM driftq.effects AS e
        WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
            = (coalesce(nullif(p_tenant, ''), 'default'), p_scope_kind, p_scope_id, p_scope_detail, p_key);
    IF NOT FOUND OR known.expires_at <= now_at THEN
        PERFORM driftq.refuse('QD404', 'the effect is not known');
    END IF;
    IF known.lease_token IS DISTINCT FROM p_lease_token THEN
        PERFORM driftq.refuse('QD410', 'stale lease');
    END IF;
    IF (known.status, known.response_code, known.last_error)
        IS DISTINCT FROM (p_status, coalesce(p_response_code, 0), coalesce(p_last_error, ''))
        OR known.result::text IS DISTINCT FROM nullif(p_result, 'null')
    THEN
        PERFORM driftq.refuse('QD409', 'the effect has ended with another outcome');
    END IF;
    IF p_is_first THEN
        PERFORM driftq.refuse('QD409', 'the effect has ended already, with this outcome');
    END IF;
END
$$;

-- Grants an effect that has failed retryably, or whose lease has expired, again. Repeated with the same nonce, it
-- returns the same grant.
CREATE FUNCTION driftq.reacquire_effect(
    p_tenant text, p_scope_kind text, p_scope_id text, p_scope_detail text, p_key text, p_owner text,
    p_lease_ms bigint DEFAULT 0, p_nonce text DEFAULT NULL,
    OUT attempt integer, OUT lease_token text, OUT lease_until text
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    tenant_or_default text := coalesce(nullif(p_tenant, ''), 'default');
    nonce text := coalesce(p_nonce, driftq.new_nonce());
    known driftq.effects%ROWTYPE;
    now_at timestamptz;
    leased_until timestamptz;
BEGIN
    PERFORM driftq.check_identity(tenant_or_default, p_scope_kind, p_scope_id, p_scope_detail, p_key);
    IF coalesce(octet_length(p_owner), 0) NOT BETWEEN 1 AND 255 THEN
        PERFORM driftq.refuse('QD400', 'an owner has 1 to 255 bytes');
    END IF;
    SELECT e.* INTO known FROM driftq.effects AS e
        WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
            = (tenant_or_default, p_scope_kind, p_scope_id, p_scope_detail, p_key)
        FOR NO KEY UPDATE SKIP LOCKED;
    now_at := clock_timestamp();
    IF NOT FOUND AND EXISTS (
        SELECT FROM driftq.effects AS e
            WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
                = (tenant_or_default, p_scope_kind, p_scope_id, p_scope_detail, p_key)
    ) THEN
        PERFORM driftq.refuse('QD409', 'the effect is being granted or finished by another call');
    END IF;
    IF known.key IS NULL OR known.expires_at <= now_at THEN
        PERFORM driftq.refuse('QD404', 'the effect is not known');
    END IF;
    IF known.status = 'IN_PROGRESS' AND known.lease_until > now_at AND right(known.lease_token, 16) = nonce THEN
        attempt := known.attempt;
        lease_token := known.lease_token;
        lease_until := driftq.rfc3339(known.lease_until);
        RETURN;
    END IF;
    IF known.status IN ('SUCCEEDED', 'FAILED_FINAL')
        OR (known.status = 'IN_PROGRESS' AND known.lease_until > now_at)
    THEN
        PERFORM driftq.refuse('QD409', format('the effect is %s and cannot be granted again', known.status));
    END IF;
    leased_until := now_at + driftq.lease_length(p_lease_ms);
    attempt := known.attempt + 1;
    lease_token := driftq.new_token(now_at, nonce, known.lease_token);
    lease_until := driftq.rfc3339(leased_until);
    UPDATE driftq.effects AS e SET
        status = 'IN_PROGRESS', attempt = known.attempt + 1,
        lease_token = driftq.new_token(now_at, nonce, known.lease_token), lease_until = leased_until,
        owner = p_owner, delivery_partition = NULL, delivery_offset = NULL, delivery_token = NULL, result = NULL,
        updated_at = now_at, expires_at = driftq.expiry(leased_until, known.ttl_ms, known.keep_until)
        WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
            = (known.tenant, known.scope_kind, known.scope_id, known.scope_detail, known.key);
END
$$;

-- Prolongs a lease that runs; returns until when.
CREATE FUNCTION driftq.renew_effect(
    p_tenant text, p_scope_kind text, p_scope_id text, p_scope_detail text, p_key text, p_lease_token text,
    p_lease_ms bigint DEFAULT 0
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    tenant_or_default text := coalesce(nullif(p_tenant, ''), 'default');
    leased_until timestamptz;
BEGIN
    PERFORM driftq.check_identity(tenant_or_default, p_scope_kind, p_scope_id, p_scope_detail, p_key);
    UPDATE driftq.effects AS e SET
        lease_until = clock_timestamp() + driftq.lease_length(p_lease_ms), updated_at = clock_timestamp(),
        expires_at = driftq.expiry(clock_timestamp() + driftq.lease_length(p_lease_ms), e.ttl_ms, e.keep_until)
        WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
            = (tenant_or_default, p_scope_kind, p_scope_id, p_scope_detail, p_key)
            AND e.status = 'IN_PROGRESS' AND e.lease_token = p_lease_token AND e.lease_until > clock_timestamp()
        RETURNING e.lease_until INTO leased_until;
    IF NOT FOUND THEN
        PERFORM driftq.refuse('QD410', 'stale lease');
    END IF;
    RETURN driftq.rfc3339(leased_until);
END
$$;

-- An effect as it is shown.
CREATE TYPE driftq.shown_effect AS (
    tenant text, scope_kind text, scope_id text, scope_detail text, key text, status text, attempt integer, owner text,
    lease_until text, result text, response_code bigint, last_error text, request_hash text, updated_at text,
    expires_at text
);

CREATE FUNCTION driftq.shown(e driftq.effects) RETURNS driftq.shown_effect
LANGUAGE sql STABLE AS $$
    SELECT e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key, e.status, e.attempt, e.owner,
        CASE e.status WHEN 'IN_PROGRESS' THEN driftq.rfc3339(e.lease_until) END, e.result::text, e.response_code,
        e.last_error, e.request_hash, driftq.rfc3339(e.updated_at), driftq.rfc3339(e.expires_at)
$$;

-- An effect; no row where it is not known.
CREATE FUNCTION driftq.get_effect(
    p_tenant text, p_scope_kind text, p_scope_id text, p_scope_detail text, p_key text
) RETURNS SETOF driftq.shown_effect
LANGUAGE plpgsql AS $$
DECLARE
    tenant_or_default text := coalesce(nullif(p_tenant, ''), 'default');
BEGIN
    PERFORM driftq.check_identity(tenant_or_default, p_scope_kind, p_scope_id, p_scope_detail, p_key);
    RETURN QUERY SELECT s.* FROM driftq.effects AS e CROSS JOIN LATERAL driftq.shown(e) AS s
        WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
            = (tenant_or_default, p_scope_kind, p_scope_id, p_scope_detail, p_key)
            AND e.expires_at > clock_timestamp();
END
$$;

-- Removes an effect; false where it was not known.
CREATE FUNCTION driftq.forget_effect(
    p_tenant text, p_scope_kind text, p_scope_id text, p_scope_detail text, p_key text
) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    tenant_or_default text := coalesce(nullif(p_tenant, ''), 'default');
    expiry timestamptz;
BEGIN
    PERFORM driftq.check_identity(tenant_or_default, p_scope_kind, p_scope_id, p_scope_detail, p_key);
    DELETE FROM driftq.effects AS e
        WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
            = (tenant_or_default, p_scope_kind, p_scope_id, p_scope_detail, p_key)
        RETURNING e.expires_at INTO expiry;
    RETURN coalesce(expiry > clock_timestamp(), false);
END
$$;

INSERT INTO driftq.migrations (version, name, sha256)
    VALUES (1, 'effects',
        '971bb32d2cb751206c2325c69e1495fa7880d5fb09c937bca6a96ce88aeee5d0');

-- What operators and retry workers need: lists by status, and the removal of what has expired.

CREATE INDEX effects_expiry ON driftq.effects (expires_at);

-- Succeeded effects are nearly all there are, and are not searched by status.
CREATE INDEX effects_not_succeeded ON driftq.effects (status, tenant, scope_kind, scope_id, scope_detail, key)
    WHERE status <> 'SUCCEEDED';

-- A page of effects, in the order of their identities: each that is there throughout is in exactly one page. `p_after`
-- has the five parts of the last identity of the page before.
CREATE FUNCTION driftq.list_effects(
    p_tenant text DEFAULT NULL, p_scope_kind text DEFAULT NULL, p_status text DEFAULT NULL,
    p_older_than_ms bigint DEFAULT 0, p_limit integer DEFAULT 100, p_after text[] DEFAULT NULL
) RETURNS SETOF driftq.shown_effect
LANGUAGE plpgsql AS $$
DECLARE
    -- No tenant is empty: this is before every identity.
    after_parts text[] := coalesce(p_after, ARRAY['', '', '', '', '']);
    now_at timestamptz := clock_timestamp();
    changed_before timestamptz := now_at - coalesce(p_older_than_ms, 0) * interval '1 millisecond';
BEGIN
    IF cardinality(after_parts) <> 5 OR array_position(after_parts, NULL) IS NOT NULL THEN
        PERFORM driftq.refuse('QD400', 'after is none of a page of a list');
    END IF;
    IF p_limit IS NULL OR p_limit NOT BETWEEN 1 AND 1000 THEN
        PERFORM driftq.refuse('QD400', 'a page has 1 to 1000 effects');
    END IF;
    IF p_status NOT IN ('IN_PROGRESS', 'SUCCEEDED', 'FAILED_FINAL', 'FAILED_RETRYABLE') THEN
        PERFORM driftq.refuse('QD400', 'a status is IN_PROGRESS, SUCCEEDED, FAILED_FINAL or FAILED_RETRYABLE');
    END IF;
    IF p_status <> 'SUCCEEDED' THEN
        RETURN QUERY SELECT s.* FROM driftq.effects AS e CROSS JOIN LATERAL driftq.shown(e) AS s
            WHERE e.status = p_status AND e.status <> 'SUCCEEDED'
                AND (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
                    > (after_parts[1], after_parts[2], after_parts[3], after_parts[4], after_parts[5])
                AND e.expires_at > now_at AND e.updated_at <= changed_before
                AND (p_tenant IS NULL OR e.tenant = p_tenant)
                AND (p_scope_kind IS NULL OR e.scope_kind = p_scope_kind)
            ORDER BY e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key
            LIMIT p_limit;
    ELSE
        RETURN QUERY SELECT s.* FROM driftq.effects AS e CROSS JOIN LATERAL driftq.shown(e) AS s
            WHERE (p_status IS NULL OR e.status = p_status)
                AND (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
                    > (after_parts[1], after_parts[2], after_parts[3], after_parts[4], after_parts[5])
                AND e.expires_at > now_at AND e.updated_at <= changed_before
                AND (p_tenant IS NULL OR e.tenant = p_tenant)
                AND (p_scope_kind IS NULL OR e.scope_kind = p_scope_kind)
            ORDER BY e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key
            LIMIT p_limit;
    END IF;
END
$$;

-- Removes up to so many expired effects, the oldest first; returns how many. It waits for no row: one that is in use
-- is left to the next call.
CREATE FUNCTION driftq.sweep_effects(p_limit integer DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    removed bigint;
BEGIN
    DELETE FROM driftq.effects AS e USING (
        SELECT s.tenant, s.scope_kind, s.scope_id, s.scope_detail, s.key FROM driftq.effects AS s
            WHERE s.expires_at <= clock_timestamp() ORDER BY s.expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED
    ) AS expired
        WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
            = (expired.tenant, expired.scope_kind, expired.scope_id, expired.scope_detail, expired.key);
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;

INSERT INTO driftq.migrations (version, name, sha256)
    VALUES (2, 'maintenance',
        '2af9b3955575f1ec8e41c1697ea5de42e2237be08b6164a4bb67f6405a8ad351');

COMMIT;
