"""Effects in PostgreSQL: a `Store` whose `finish` can share a transaction with the service's own writes.

Needs psycopg 3 and its pool: `pip install driftq[postgres]`.
"""

try:
    import psycopg as _psycopg
    import psycopg_pool as _psycopg_pool
except ImportError as error:
    raise ImportError(
        f"driftq.postgres needs psycopg 3 with its pool, pip install driftq[postgres]: {error}"
    ) from error

from driftq.postgres.migrations import Migration, migrate, migrations, schema
from driftq.postgres.store import PostgresStore

__all__ = ["Migration", "PostgresStore", "migrate", "migrations", "schema"]

del _psycopg, _psycopg_pool
