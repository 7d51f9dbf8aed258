"""Statements that people steer queues with: other priorities, deleting, purging, all that failed once more.

They name their queue like those of producers and workers. The ones that are told their rows lock them in key order;
the ones that find their rows skip what others hold, and are repeated until nothing is left.
"""

from . import items, jobs
from .statement import Statement

# Another rank is another stretch of the claim index, whose floor may be past the row's time already.
_PRIORITIZED = "priority = %(priority)s::int, available_at = GREATEST(q.available_at, (SELECT t FROM target LIMIT 1))"

JOB_PRIORITY = Statement(
    "job_priority",
    f"""
    WITH target AS MATERIALIZED (
     SELECT q.id, statement_timestamp() AS t FROM workqueue_job q
     WHERE q.queue = {{Q}} AND q.id = ANY (%(idents)s::bigint[]) AND COALESCE(q.outcome, '') = ''
      AND q.lease_until = 'epoch' AND q.priority <> %(priority)s::int ORDER BY q.id FOR UPDATE),
    changed AS (
     UPDATE workqueue_job q SET {_PRIORITIZED}
     WHERE q.queue = {{Q}} AND q.id = ANY (ARRAY(SELECT id FROM target)) RETURNING 1)
    SELECT count(*) FROM changed
    """,
    prepare=False,
)

ITEM_PRIORITY = Statement(
    "item_priority",
    f"""
    WITH target AS MATERIALIZED (
     SELECT q.key, statement_timestamp() AS t FROM workqueue_item q
     WHERE q.queue = {{Q}} AND q.key = ANY (%(idents)s::text[]) AND {items.OPEN}
      AND q.lease_until = 'epoch' AND q.priority <> %(priority)s::int ORDER BY q.key FOR UPDATE),
    changed AS (
     UPDATE workqueue_item q SET {_PRIORITIZED}
     WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM target)) RETURNING 1)
    SELECT count(*) FROM changed
    """,
    prepare=False,
)

JOB_DELETE = Statement(
    "job_delete",
    """
    WITH target AS MATERIALIZED (
     SELECT q.id FROM workqueue_job q WHERE q.queue = {Q} AND q.id = ANY (%(idents)s::bigint[])
     ORDER BY q.id FOR UPDATE),
    gone AS (
     DELETE FROM workqueue_job q WHERE q.queue = {Q} AND q.id = ANY (ARRAY(SELECT id FROM target)) RETURNING 1)
    SELECT count(*) FROM gone
    """,
    prepare=False,
)

# Stalled items start afresh, at the priority they had.
_REVIVED = """stalled_at = NULL, attempts = 0, last_error = NULL, requeue_at = NULL,
      enqueued_at = (SELECT t FROM target LIMIT 1), available_at = (SELECT t FROM target LIMIT 1)"""
ITEM_REVIVE = Statement(
    "item_revive",
    f"""
    WITH target AS MATERIALIZED (
     SELECT q.key, statement_timestamp() AS t FROM workqueue_item q
     WHERE q.queue = {{Q}} AND q.key = ANY (%(idents)s::text[]) AND q.stalled_at IS NOT NULL
     ORDER BY q.key FOR UPDATE),
    revived AS (
     UPDATE workqueue_item q SET {_REVIVED}
     WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM target)) RETURNING 1)
    SELECT count(*) FROM revived
    """,
    prepare=False,
)

ITEM_REVIVE_ALL = Statement(
    "item_revive_all",
    f"""
    WITH target AS MATERIALIZED (
     SELECT q.key, statement_timestamp() AS t FROM workqueue_item q
     WHERE q.queue = {{Q}} AND q.stalled_at IS NOT NULL
     ORDER BY q.stalled_at LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED),
    revived AS (
     UPDATE workqueue_item q SET {_REVIVED}
     WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM target)) RETURNING 1)
    SELECT count(*) FROM revived
    """,
    prepare=False,
)

JOB_RETRY_ALL = Statement(
    "job_retry_all",
    """
    WITH target AS MATERIALIZED (
     SELECT q.id, statement_timestamp() AS t FROM workqueue_job q WHERE q.queue = {Q} AND q.outcome = 'dead'
     ORDER BY q.finished_at LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED),
    again AS (
     UPDATE workqueue_job q SET outcome = NULL, finished_at = NULL, started_at = NULL, result = NULL, attempts = 0,
      available_at = (SELECT t FROM target LIMIT 1), lease_until = 'epoch', lease_token = 0
     WHERE q.queue = {Q} AND q.id = ANY (ARRAY(SELECT id FROM target)) RETURNING 1)
    SELECT count(*) FROM again
    """,
    prepare=False,
)


def _purge(name: str, table: str, ident: str, where: str) -> Statement:
    return Statement(
        name,
        f"""
        WITH target AS MATERIALIZED (
         SELECT q.{ident} FROM {table} q WHERE q.queue = {{Q}} AND {where} LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED),
        gone AS (
         DELETE FROM {table} q WHERE q.queue = {{Q}} AND q.{ident} = ANY (ARRAY(SELECT {ident} FROM target))
         RETURNING 1)
        SELECT count(*) FROM gone
        """,
        prepare=False,
    )


JOB_PURGES = {
    "waiting": (_purge("job_purge_waiting", "workqueue_job", "id", f"{jobs.OPEN} AND q.lease_until = 'epoch'"),),
    "finished": (_purge("job_purge_finished", "workqueue_job", "id", "q.outcome IS NOT NULL"),),
    "leased": (_purge("job_purge_leased", "workqueue_job", "id", f"{jobs.OPEN} AND q.lease_until > 'epoch'"),),
}
ITEM_PURGES = {
    "waiting": (
        _purge("inbox_purge", "workqueue_inbox", "id", "true"),
        _purge("item_purge_waiting", "workqueue_item", "key", f"{items.OPEN} AND q.lease_until = 'epoch'"),
    ),
    "finished": (
        _purge("item_purge_completed", "workqueue_item", "key", "q.completed_at IS NOT NULL"),
        _purge("item_purge_stalled", "workqueue_item", "key", "q.stalled_at IS NOT NULL"),
    ),
    "leased": (_purge("item_purge_leased", "workqueue_item", "key", f"{items.OPEN} AND q.lease_until > 'epoch'"),),
}
