-- Ends the newest grant of an effect: what driftq.finish_effect does first, without the cost of calling it. No row:
-- nothing was changed, and finish_effect decides. It refuses what is invalid here, too.
UPDATE driftq.effects AS e SET
    status = $7::text, result = nullif($8::text, 'null')::json, response_code = coalesce($9::bigint, 0),
    last_error = coalesce($10::text, ''), updated_at = statement_timestamp(),
    expires_at = driftq.expiry(statement_timestamp(), e.ttl_ms, e.keep_until)
WHERE (e.tenant, e.scope_kind, e.scope_id, e.scope_detail, e.key)
        = (coalesce(nullif($1::text, ''), 'default'), $2::text, $3::text, $4::text, $5::text)
    AND e.status = 'IN_PROGRESS' AND e.lease_token = $6::text AND e.expires_at > statement_timestamp()
    AND driftq.is_identity($1::text, $2::text, $3::text, $4::text, $5::text)
    AND $7::text IN ('SUCCEEDED', 'FAILED_FINAL', 'FAILED_RETRYABLE')
    AND ($8::text IS NULL OR octet_length($8::text) <= 65536)
    AND ($10::text IS NULL OR octet_length($10::text) <= 4096)
    AND current_setting('synchronous_commit') <> 'off'
RETURNING e.attempt
