"""What the doctor asks the server about: who holds vacuum back, the state of our tables, work that nobody does."""

from .statement import Statement


def _statement(name: str, text: str) -> Statement:
    return Statement(f"doctor_{name}", text, prepare=False, for_people=True)


# Transactions of this database that were open for so long, whether they hold a snapshot or only locks.
SESSIONS = _statement(
    "sessions",
    """
    SELECT a.pid, COALESCE(a.application_name, ''), COALESCE(a.usename, ''), COALESCE(a.state, ''),
     extract(epoch FROM statement_timestamp() - a.xact_start)::float8 AS seconds,
     extract(epoch FROM statement_timestamp() - a.state_change)::float8 AS since_change,
     a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL AS holds, left(COALESCE(a.query, ''), 200)
    FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
     AND a.xact_start < statement_timestamp() - %(longer)s::bigint * interval '1 microsecond'
    ORDER BY a.xact_start LIMIT 20
    """,
)

PREPARED = _statement(
    "prepared",
    """
    SELECT p.gid, p.owner, extract(epoch FROM statement_timestamp() - p.prepared)::float8
    FROM pg_prepared_xacts p
    WHERE p.database = current_database()
     AND p.prepared < statement_timestamp() - %(longer)s::bigint * interval '1 microsecond'
    ORDER BY p.prepared LIMIT 20
    """,
)

# A slot's xmin keeps what any session at that point could still see; its catalog_xmin, only what is in the catalogs.
SLOTS = _statement(
    "slots",
    """
    SELECT s.slot_name, s.active, age(COALESCE(s.xmin, s.catalog_xmin)), s.xmin IS NULL FROM pg_replication_slots s
    WHERE age(COALESCE(s.xmin, s.catalog_xmin)) > %(age)s::int ORDER BY 3 DESC LIMIT 20
    """,
)

STANDBYS = _statement(
    "standbys",
    """
    SELECT COALESCE(r.application_name, ''), COALESCE(host(r.client_addr), 'local'), age(r.backend_xmin)
    FROM pg_stat_replication r
    WHERE r.backend_xmin IS NOT NULL AND age(r.backend_xmin) > %(age)s::int ORDER BY 3 DESC LIMIT 20
    """,
)

_OURS = """ours AS (
     SELECT c.oid, c.relname, c.reloptions FROM pg_class c
     WHERE c.oid IN (to_regclass('workqueue_inbox'), to_regclass('workqueue_minute'))
      OR c.oid IN (SELECT h.inhrelid FROM pg_inherits h
       WHERE h.inhparent IN (to_regclass('workqueue_item'), to_regclass('workqueue_job'))))"""

TABLES = _statement(
    "tables",
    f"""
    WITH {_OURS}
    SELECT o.relname, COALESCE(s.n_live_tup, 0), COALESCE(s.n_dead_tup, 0),
     COALESCE('autovacuum_enabled=false' = ANY (o.reloptions), false)
      OR COALESCE('autovacuum_enabled=off' = ANY (o.reloptions), false),
     extract(epoch FROM statement_timestamp() - GREATEST(s.last_autovacuum, s.last_vacuum))::float8
    FROM ours o LEFT JOIN pg_stat_user_tables s ON s.relid = o.oid ORDER BY o.relname
    """,
)

# Entries are as the last vacuum or analyze found them; -1 where there was none.
INDEXES = _statement(
    "indexes",
    f"""
    WITH {_OURS}
    SELECT c.relname, o.relname, pg_relation_size(c.oid), c.reltuples::bigint
    FROM ours o JOIN pg_index x ON x.indrelid = o.oid JOIN pg_class c ON c.oid = x.indexrelid
    WHERE pg_relation_size(c.oid) > %(bytes)s::bigint AND c.reltuples >= 0
    ORDER BY pg_relation_size(c.oid) DESC
    """,
)

SERVER = _statement(
    "server",
    """
    SELECT current_setting('autovacuum')::boolean, current_setting('track_counts')::boolean,
     (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    """,
)

# What waits in the inbox for a claim to fold it, as far as the first rows tell.
INBOX = _statement(
    "inbox",
    """
    SELECT i.queue, count(*) FROM (SELECT b.queue FROM workqueue_inbox b ORDER BY b.id LIMIT %(limit)s::int) i
    GROUP BY i.queue ORDER BY 2 DESC
    """,
)

# The kinds among the first jobs that are due. One that nobody handles is among them sooner or later.
KINDS = _statement(
    "kinds",
    """
    SELECT w.kind, count(*), bool_or(w.task) FROM (
     SELECT q.kind, q.metadata ? 'task' AS task FROM workqueue_job q
     WHERE q.queue = {Q} AND q.outcome IS NULL AND q.available_at <= statement_timestamp()
      AND q.lease_until <= statement_timestamp()
     ORDER BY -q.priority, q.available_at, q.id LIMIT %(limit)s::int) w
    GROUP BY w.kind ORDER BY 2 DESC, 1
    """,
)

WORKERS = _statement(
    "workers",
    """
    SELECT w.id, w.host, w.pid, w.queues, w.concurrency,
     extract(epoch FROM statement_timestamp() - w.seen_at)::float8
    FROM workqueue_worker w ORDER BY w.seen_at DESC LIMIT 1000
    """,
)
