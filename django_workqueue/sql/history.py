"""Statements that read the minute counters, for people.

Minutes are looked up one by one (`span` of them, up to the last full one, or every so manyth), so that a long time
with many queues costs no more than a short one. A bucket is `per` minutes.
"""

from .statement import Statement

_MINUTES = """FROM generate_series(0, %(span)s::int - 1, %(every)s::int) n
    CROSS JOIN LATERAL (
     SELECT w.* FROM workqueue_minute w
     WHERE w.minute = date_trunc('minute', statement_timestamp()) - (%(span)s::int - n) * interval '1 minute'
      AND (%(queue)s::text IS NULL OR w.queue = %(queue)s::text)) w"""

# How many rows there are of a minute, by the last ones; and when the last full minute ended.
DENSITY = Statement(
    "history_density",
    """
    SELECT count(w.minute) / 5.0, (extract(epoch FROM date_trunc('minute', statement_timestamp())) * 1000000)::bigint
    FROM (VALUES (1)) one LEFT JOIN workqueue_minute w
     ON w.minute >= date_trunc('minute', statement_timestamp()) - interval '5 minutes'
      AND w.minute < date_trunc('minute', statement_timestamp())
      AND (%(queue)s::text IS NULL OR w.queue = %(queue)s::text)
    """,
    prepare=False,
    for_people=True,
)

COUNTS = Statement(
    "history_counts",
    f"""
    SELECT w.queue, n / %(per)s::int, sum(w.enqueued)::bigint, sum(w.started)::bigint, sum(w.completed)::bigint,
     sum(w.failed)::bigint, sum(w.dead)::bigint, sum(w.wait_us)::bigint, sum(w.run_us)::bigint
    {_MINUTES} GROUP BY 1, 2
    """,
    prepare=False,
    for_people=True,
)

HISTOGRAMS = Statement(
    "history_histograms",
    f"""
    SELECT n / %(per)s::int, h.what, h.place::int, sum(h.count)::bigint
    {_MINUTES}
    CROSS JOIN LATERAL (
     SELECT 'wait' AS what, place, count FROM unnest(w.wait_histogram) WITH ORDINALITY a(count, place)
     UNION ALL
     SELECT 'run', place, count FROM unnest(w.run_histogram) WITH ORDINALITY a(count, place)) h
    WHERE h.count > 0 GROUP BY 1, 2, 3
    """,
    prepare=False,
    for_people=True,
)

WORKERS = Statement(
    "history_workers",
    """
    SELECT w.id, w.host, w.pid, w.queues, w.concurrency, w.in_flight, w.started_at,
     (extract(epoch FROM statement_timestamp() - w.seen_at) * 1000000)::bigint,
     (extract(epoch FROM statement_timestamp() - w.started_at) * 1000000)::bigint
    FROM workqueue_worker w ORDER BY w.host, w.pid, w.id LIMIT %(limit)s::int
    """,
    prepare=False,
    for_people=True,
)
