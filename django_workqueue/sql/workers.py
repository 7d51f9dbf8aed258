"""Statements about worker processes: a table for people to look at, which no decision reads."""

from .statement import Statement

SEEN = Statement(
    "worker_seen",
    """
    INSERT INTO workqueue_worker AS w (id, host, pid, started_at, seen_at, queues, concurrency, in_flight)
    VALUES (%(id)s, %(host)s, %(pid)s, statement_timestamp() - %(age)s::bigint * interval '1 microsecond',
        statement_timestamp(), %(queues)s::jsonb, %(concurrency)s, %(in_flight)s)
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, queues = excluded.queues,
        concurrency = excluded.concurrency, in_flight = excluded.in_flight
    """,
    for_people=True,
)

GONE = Statement("worker_gone", "DELETE FROM workqueue_worker WHERE id = %(id)s", for_people=True)

# Those that could not say goodbye.
FORGET = Statement(
    "worker_forget",
    "DELETE FROM workqueue_worker WHERE seen_at < statement_timestamp() - %(age)s::bigint * interval '1 microsecond'",
    for_people=True,
)
