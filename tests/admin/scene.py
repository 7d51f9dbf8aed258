"""A scene for the admin's pages to show: queues in every state, a past, workers, errors."""

import json
import math
import random
from datetime import UTC, datetime, timedelta

from django.db import connections

from django_workqueue import histogram

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 41, in send
    server.deliver(message)
  File "/srv/shop/mail.py", line 118, in deliver
    raise MailboxFull(message.to)
shop.mail.MailboxFull: user@example.org: the mailbox is full
"""

ITEMS = """
    INSERT INTO workqueue_item (queue, key, priority, attempts, enqueued_at, available_at, lease_until, lease_token,
     completed_at, stalled_at, last_error)
    SELECT %(queue)s, %(prefix)s || to_char(n, 'FM000000'), n %% 3, CASE WHEN s = 'ready' THEN 0 ELSE 1 END,
     now() - interval '1 hour' - n * interval '1 second',
     CASE WHEN s = 'scheduled' THEN now() + n * interval '1 minute' ELSE now() - n * %(wait)s::interval END,
     CASE WHEN s = 'leased' THEN now() + interval '10 minutes' ELSE 'epoch' END,
     CASE WHEN s = 'leased' THEN n ELSE 0 END,
     CASE WHEN s = 'completed' THEN now() - n * interval '1 second' END,
     CASE WHEN s = 'stalled' THEN now() - n * interval '3 minutes' END,
     CASE WHEN s = 'stalled' THEN 'TimeoutError: the supplier did not answer within 30 s' END
    FROM (SELECT n, CASE WHEN n <= %(ready)s THEN 'ready' WHEN n <= %(ready)s + %(leased)s THEN 'leased'
     WHEN n <= %(ready)s + %(leased)s + %(scheduled)s THEN 'scheduled'
     WHEN n <= %(ready)s + %(leased)s + %(scheduled)s + %(stalled)s THEN 'stalled' ELSE 'completed' END AS s
     FROM generate_series(1, %(ready)s + %(leased)s + %(scheduled)s + %(stalled)s + %(completed)s) n) x
"""

JOBS = """
    INSERT INTO workqueue_job (queue, kind, payload, priority, attempts, max_attempts, enqueued_at, available_at,
     lease_until, lease_token, started_at, finished_at, outcome, result, errors, worker_ids)
    SELECT %(queue)s, (ARRAY['mail.welcome', 'mail.invoice', 'mail.reminder'])[1 + n %% 3],
     jsonb_build_object('to', 'user' || n || '@example.org', 'order', n, 'lines', '[1, 2, 3]'::jsonb), n %% 2,
     CASE WHEN s IN ('ready', 'scheduled') THEN 0 WHEN s = 'dead' THEN 5 ELSE 1 END, 5,
     now() - n * interval '20 seconds',
     CASE WHEN s = 'scheduled' THEN now() + n * interval '1 minute' ELSE now() - n * %(wait)s::interval END,
     CASE WHEN s = 'leased' THEN now() + interval '10 minutes' ELSE 'epoch' END,
     CASE WHEN s = 'leased' THEN n ELSE 0 END,
     CASE WHEN s IN ('completed', 'dead', 'leased') THEN now() - n * interval '10 seconds' END,
     CASE WHEN s IN ('completed', 'dead', 'cancelled') THEN now() - n * interval '9 seconds' END,
     CASE WHEN s IN ('completed', 'dead', 'cancelled') THEN s END,
     CASE WHEN s = 'completed' THEN '{"sent": true}'::jsonb END,
     CASE WHEN s = 'dead' THEN %(errors)s::jsonb ELSE '[]' END,
     CASE WHEN s IN ('completed', 'dead', 'leased') THEN '["web-1-4711-ab12cd"]'::jsonb ELSE '[]' END
    FROM (SELECT n, CASE WHEN n <= %(ready)s THEN 'ready' WHEN n <= %(ready)s + %(leased)s THEN 'leased'
     WHEN n <= %(ready)s + %(leased)s + %(scheduled)s THEN 'scheduled'
     WHEN n <= %(ready)s + %(leased)s + %(scheduled)s + %(stalled)s THEN 'dead'
     WHEN n <= %(ready)s + %(leased)s + %(scheduled)s + %(stalled)s + 3 THEN 'cancelled' ELSE 'completed' END AS s
     FROM generate_series(1, %(ready)s + %(leased)s + %(scheduled)s + %(stalled)s + 3 + %(completed)s) n) x
"""

MINUTES = """
    INSERT INTO workqueue_minute (queue, kind, minute, enqueued, started, completed, failed, dead, wait_us, run_us,
     wait_histogram, run_histogram)
    SELECT %s, %s, date_trunc('minute', now()) - %s * interval '1 minute', %s, %s, %s, %s, %s, %s, %s,
     %s::bigint[], %s::bigint[]
"""


def items(
    queue: str, *, alias: str = "default", prefix: str = "product-", wait: str = "1 second", **counts: int
) -> None:
    """Rows of a keyed queue: so many of each state."""
    _insert(alias, ITEMS, {"queue": queue, "prefix": prefix, "wait": wait, **_NONE, **counts})


def jobs(queue: str, *, alias: str = "default", wait: str = "1 second", **counts: int) -> None:
    """Rows of a job queue: so many of each state."""
    now = datetime.now(UTC)
    errors = [
        {
            "type": "shop.mail.MailboxFull",
            "message": "user@example.org: the mailbox is full",
            "traceback": TRACEBACK,
            "worker": "web-1-4711-ab12cd",
            "at": f"{now - timedelta(minutes=24 - attempt):%Y-%m-%dT%H:%M:%S}.000000Z",
            "started": f"{now - timedelta(minutes=24 - attempt, seconds=1):%Y-%m-%dT%H:%M:%S}.000000Z",
            "attempt": attempt,
        }
        for attempt in (1, 2)
    ]
    _insert(alias, JOBS, {"queue": queue, "wait": wait, "errors": json.dumps(errors), **_NONE, **counts})


def past(
    queue: str, kind: str = "", *, alias: str = "default", minutes: int = 180, busy: float = 40, seed: int = 1
) -> None:
    """Minute counters with a bit of weather."""
    weather = random.Random(seed)
    rows = []
    for ago in range(1, minutes + 1):
        started = max(round(busy * (1 + 0.5 * math.sin(ago / 9)) + weather.gauss(0, busy / 8)), 0)
        failed = sum(weather.random() < 0.04 for _ in range(started))
        dead = sum(weather.random() < 0.2 for _ in range(failed))
        waits = [weather.lognormvariate(0, 0.8) * 400_000 for _ in range(started)]
        runs = [weather.lognormvariate(0, 0.5) * 90_000 for _ in range(started)]
        histograms = [histogram.counted(waits), histogram.counted(runs)]
        counts = [started, started, started - failed, failed, dead, round(sum(waits)), round(sum(runs))]
        rows.append([queue, kind, ago, *counts, *histograms])
    with connections[alias].cursor() as cursor:
        cursor.executemany(MINUTES, rows)


def worker(ident: str, queues: list[str], *, alias: str = "default", silence: timedelta = timedelta(seconds=3)) -> None:
    """A worker's row."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "INSERT INTO workqueue_worker (id, host, pid, started_at, seen_at, queues, concurrency, in_flight)"
            " VALUES (%s, %s, %s, now() - interval '3 hours', now() - %s::interval, %s::jsonb, 8, 5)",
            [ident, ident.rsplit("-", 2)[0], 4711, silence, json.dumps(queues)],
        )


def record(queue: str, face: str, *, alias: str = "default", paused: bool = False, **settings: float) -> None:
    """A queue's own row."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "INSERT INTO workqueue_queue (name, face, settings, paused_at, seen_at)"
            " VALUES (%s, %s, %s::jsonb, CASE WHEN %s THEN now() END, now())",
            [queue, face, json.dumps({"max_attempts": 5, "retention": 86400.0, **settings}), paused],
        )


def whole(alias: str = "default") -> None:
    """Everything at once, as the screenshots show it."""
    items("products", alias=alias, ready=1840, leased=16, scheduled=230, stalled=4, completed=5200, wait="0.01 seconds")
    items("search-index", alias=alias, prefix="page-", ready=120, leased=8, scheduled=0, completed=900, wait="1 second")
    jobs("mails", alias=alias, ready=60, leased=5, scheduled=40, stalled=12, completed=3100, wait="14 seconds")
    jobs("reports", alias=alias, ready=0, leased=2, scheduled=9, stalled=0, completed=140)
    record("products", "items", alias=alias)
    record("search-index", "items", alias=alias, paused=True)
    record("mails", "jobs", alias=alias, dead_retention=2592000.0)
    record("reports", "jobs", alias=alias, dead_retention=2592000.0)
    past("products", alias=alias, busy=60, seed=1)
    past("search-index", alias=alias, busy=18, seed=2)
    past("mails", "mail.welcome", alias=alias, busy=25, seed=3)
    past("reports", "report.daily", alias=alias, busy=2, seed=4)
    worker("web-1-4711-ab12cd", ["products", "search-index"], alias=alias)
    worker("web-2-4711-ef34ab", ["mails", "reports"], alias=alias)


_NONE = dict.fromkeys(("ready", "leased", "scheduled", "stalled", "completed"), 0)


def _insert(alias: str, statement: str, params: dict[str, object]) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, params)
