"""Statements about the minute counters: what happened to a queue, and to each kind of its jobs, within a minute."""

from .statement import Statement

COUNTERS = ("enqueued", "started", "completed", "failed", "dead", "reclaimed", "lost", "wait_us", "run_us")
HISTOGRAMS = ("wait_histogram", "run_histogram")

_COLUMNS = ", ".join((*COUNTERS, *HISTOGRAMS))
_VALUES = ", ".join((*(f"u.{name}" for name in COUNTERS), *(f"u.{name}::bigint[]" for name in HISTOGRAMS)))
_ARRAYS = ", ".join((*(f"%({name})s::bigint[]" for name in COUNTERS), *(f"%({name})s::text[]" for name in HISTOGRAMS)))
_SUMS = ", ".join(
    (
        *(f"{name} = w.{name} + excluded.{name}" for name in COUNTERS),
        *(
            f"""{name} = ARRAY(SELECT COALESCE(b.was, 0) + COALESCE(b.new, 0)
      FROM unnest(w.{name}, excluded.{name}) WITH ORDINALITY b(was, new, place) ORDER BY b.place)"""
            for name in HISTOGRAMS
        ),
    )
)

# Many processes add to one row; it is locked for the length of this statement. The minute is the server's.
ADD = Statement(
    "minute_add",
    f"""
    INSERT INTO workqueue_minute AS w (queue, kind, minute, {_COLUMNS})
    SELECT {{Q}}, u.kind, date_trunc('minute', statement_timestamp()), {_VALUES}
    FROM unnest(%(kinds)s::text[], {_ARRAYS}) u(kind, {_COLUMNS}) ORDER BY u.kind COLLATE "C"
    ON CONFLICT (queue, kind, minute) DO UPDATE SET {_SUMS}
    """,
)

PRUNE = Statement(
    "minute_prune",
    """
    WITH old AS MATERIALIZED (
     SELECT w.kind, w.minute FROM workqueue_minute w
     WHERE w.queue = {Q} AND w.minute < statement_timestamp() - %(history)s::bigint * interval '1 microsecond'
     ORDER BY w.minute LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED),
    gone AS (
     DELETE FROM workqueue_minute w USING old WHERE w.queue = {Q} AND w.kind = old.kind AND w.minute = old.minute
     RETURNING 1)
    SELECT count(*) FROM gone
    """,
    prepare=False,
)

# Of whom the oldest minutes are that are to go: also of queues that no worker here, or none at all, works any more.
OLD = Statement(
    "minute_old",
    """
    SELECT DISTINCT old.queue FROM (
     SELECT w.queue FROM workqueue_minute w
     WHERE w.minute < statement_timestamp() - %(history)s::bigint * interval '1 microsecond'
     ORDER BY w.minute LIMIT %(limit)s::int) old
    """,
    prepare=False,
    for_people=True,
)
