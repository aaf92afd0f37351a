"""What the store sends: two statements for what is ordinary, and calls of the functions of the schema, which decide.

The statements are files that the clients of all languages send. They do what the function does first for a new effect
and for the newest grant of one, and cost half as much. All else is left to the functions, and so are refusals.
"""

from __future__ import annotations

from importlib.resources import files


def _file(name: str) -> bytes:
    return files("driftq.postgres").joinpath("statements").joinpath(f"{name}.sql").read_bytes()


_IDENTITY = "$1::text, $2::text, $3::text, $4::text, $5::text"
BEGIN_NEW = _file("begin")
"""Grants a new effect as `BEGIN` does, with the same parameters; no row for any other."""
BEGIN = (
    f"SELECT * FROM driftq.begin_effect({_IDENTITY}, p_owner => $6::text, p_lease_ms => $7::bigint, "
    "p_ttl_ms => $8::bigint, p_keep_until => $9::text::timestamptz, p_request_hash => $10::text, "
    "p_on_expired => $11::text, p_delivery_partition => $12::bigint, p_delivery_offset => $13::bigint, "
    "p_delivery_token => $14::text, p_nonce => $15::text)"
)
FINISH_NEWEST = _file("finish")
"""Ends the newest grant of an effect as `FINISH` does, with all its parameters but the last; no row for any other."""
FINISH = (
    f"SELECT driftq.finish_effect({_IDENTITY}, p_lease_token => $6::text, p_status => $7::text, p_result => $8::text, "
    "p_response_code => $9::bigint, p_last_error => $10::text, p_is_first => $11::boolean)"
)
REACQUIRE = (
    f"SELECT * FROM driftq.reacquire_effect({_IDENTITY}, p_owner => $6::text, p_lease_ms => $7::bigint, "
    "p_nonce => $8::text)"
)
RENEW = f"SELECT driftq.renew_effect({_IDENTITY}, p_lease_token => $6::text, p_lease_ms => $7::bigint) AS lease_until"
GET = f"SELECT * FROM driftq.get_effect({_IDENTITY})"
FORGET = f"SELECT driftq.forget_effect({_IDENTITY}) AS known"
LIST = (
    "SELECT * FROM driftq.list_effects(p_tenant => $1::text, p_scope_kind => $2::text, p_status => $3::text, "
    "p_older_than_ms => $4::bigint, p_limit => $5::integer, p_after => $6::text[])"
)
SWEEP = "SELECT driftq.sweep_effects(p_limit => $1::integer) AS removed"
