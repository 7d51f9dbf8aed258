"""What a scrape of the metrics asks, beside the stats of each queue."""

from .minutes import COUNTERS, HISTOGRAMS
from .statement import Statement

# The minutes that may have changed since the last scrape: a few rows for each queue and kind. The minute comes as a
# number that stands for it; nothing is reckoned with it.
RECENT = Statement(
    "export_minutes",
    f"""
    SELECT extract(epoch FROM w.minute)::bigint, w.queue, w.kind,
     {", ".join(f"w.{name}" for name in (*COUNTERS, *HISTOGRAMS))}
    FROM workqueue_minute w
    WHERE w.minute >= GREATEST(timestamptz 'epoch' + %(since)s::bigint * interval '1 second',
     date_trunc('minute', statement_timestamp()) - interval '15 minutes')
    ORDER BY w.minute LIMIT 50000
    """,
    prepare=False,
    for_people=True,
)

WORKERS = Statement(
    "export_workers",
    """
    SELECT count(*), COALESCE(sum(w.concurrency), 0), COALESCE(sum(w.in_flight), 0) FROM workqueue_worker w
    WHERE w.seen_at > statement_timestamp() - interval '1 minute'
    """,
    prepare=False,
    for_people=True,
)
