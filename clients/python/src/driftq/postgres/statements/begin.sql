-- Grants an effect that is new: what driftq.begin_effect does first, without the cost of calling it. No row: nothing
-- was changed, and begin_effect decides, with the same nonce. It refuses what is invalid here, too.
INSERT INTO driftq.effects AS e (
    tenant, scope_kind, scope_id, scope_detail, key, status, attempt, lease_token, lease_until, owner,
    delivery_partition, delivery_offset, delivery_token, request_hash, ttl_ms, keep_until, created_at, updated_at,
    expires_at
) SELECT
    f.tenant, $2::text, $3::text, $4::text, $5::text, 'IN_PROGRESS', 1, driftq.new_token(f.now_at, $15::text, NULL),
    f.now_at + driftq.lease_length($7::bigint), $6::text, $12::bigint, $13::bigint, $14::text, $10::text, f.ttl_ms,
    $9::text::timestamptz, f.now_at, f.now_at,
    driftq.expiry(f.now_at + driftq.lease_length($7::bigint), f.ttl_ms, $9::text::timestamptz)
FROM (
    SELECT coalesce(nullif($1::text, ''), 'default') AS tenant, clock_timestamp() AS now_at,
        coalesce($8::bigint, CASE WHEN $2::text IN ('job', 'task') THEN 604800000 ELSE 86400000 END) AS ttl_ms
) AS f
WHERE $5::text <> ''
    AND driftq.is_identity($1::text, $2::text, $3::text, $4::text, $5::text)
    AND octet_length($6::text) BETWEEN 1 AND 255
    AND ($10::text IS NULL OR octet_length($10::text) <= 255)
    AND ($11::text IS NULL OR $11::text IN ('take_over', 'report'))
    AND ($8::bigint IS NULL OR ($8::bigint >= 0 AND $9::text IS NULL))
    AND ($9::text IS NULL OR $9::text::timestamptz > f.now_at)
    AND ($14::text IS NULL OR $2::text = 'consume')
    AND current_setting('synchronous_commit') <> 'off'
    -- Not without looking first: the insert would wait for a transaction that is finishing the effect.
    AND NOT EXISTS (
        SELECT FROM driftq.effects AS k
            WHERE (k.tenant, k.scope_kind, k.scope_id, k.scope_detail, k.key)
                = (f.tenant, $2::text, $3::text, $4::text, $5::text)
    )
ON CONFLICT ON CONSTRAINT effects_pkey DO NOTHING
RETURNING 'EXECUTE' AS decision, e.status, e.attempt, e.lease_token, driftq.rfc3339(e.lease_until) AS lease_until,
    true AS idempotent, NULL::text AS result
