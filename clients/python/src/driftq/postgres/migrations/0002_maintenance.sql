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
