"""What each page of the admin costs the database, with 5 million jobs and 5 million items.

    python -m benchmarks.pages [--rows 5000000] [--rounds 5]

Wants Django, this project and the dependency group `demo` installed. Starts a server of its own. Exits 1 if a page
takes the database 50 ms or more (the middle one of the rounds).
"""

# ruff: noqa: PLC0415 - Django is set up first

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.server import Server

GOAL = 0.050  # seconds of database time
QUEUES = 5

ITEMS = """
    INSERT INTO workqueue_item (queue, key, priority, attempts, enqueued_at, available_at, lease_until, lease_token,
     completed_at, stalled_at, last_error)
    SELECT 'items-' || n % {queues}, 'product-' || to_char(n, 'FM00000000'), n % 3, (n % 500 = 0)::int,
     now() - interval '1 hour', now() - interval '1 hour' + n * interval '1 microsecond'
      + (n % 10 = 1)::int * interval '1 day',
     CASE WHEN n % 500 = 0 THEN now() + interval '1 day' ELSE 'epoch' END, (n % 500 = 0)::int * n,
     CASE WHEN n % 10 IN (2, 3, 4, 5) THEN now() - n * interval '1 millisecond' END,
     CASE WHEN n % 10 = 6 THEN now() - n * interval '1 millisecond' END,
     CASE WHEN n % 10 = 6 THEN 'TimeoutError: no answer' END
    FROM generate_series(1, {rows}) n"""

JOBS = """
    INSERT INTO workqueue_job (queue, kind, payload, priority, attempts, max_attempts, enqueued_at, available_at,
     lease_until, lease_token, started_at, finished_at, outcome, errors)
    SELECT 'jobs-' || n % {queues}, 'kind-' || n % 7, jsonb_build_object('order', n, 'to', 'user@example.org'), n % 3,
     (n % 500 = 0)::int, 5, now() - interval '1 hour',
     now() - interval '1 hour' + n * interval '1 microsecond' + (n % 10 = 1)::int * interval '1 day',
     CASE WHEN n % 500 = 0 THEN now() + interval '1 day' ELSE 'epoch' END, (n % 500 = 0)::int * n,
     CASE WHEN n % 10 BETWEEN 2 AND 6 THEN now() END,
     CASE WHEN n % 10 BETWEEN 2 AND 6 THEN now() - n * interval '1 millisecond' END,
     CASE WHEN n % 10 BETWEEN 2 AND 5 THEN 'completed' WHEN n % 10 = 6 THEN 'dead' END,
     CASE WHEN n % 10 = 6 THEN '[{{"type": "shop.Full", "message": "full", "attempt": 5}}]'::jsonb ELSE '[]' END
    FROM generate_series(1, {rows}) n"""

MINUTES = """
    INSERT INTO workqueue_minute (queue, kind, minute, enqueued, started, completed, failed, wait_us, run_us,
     wait_histogram, run_histogram)
    SELECT CASE WHEN q % 2 = 0 THEN 'items-' ELSE 'jobs-' END || q / 2, '',
     date_trunc('minute', now()) - m * interval '1 minute', 100, 100, 95, 5, 40000000, 9000000,
     array_fill(0::bigint, ARRAY[12]) || '{{10,30,30,20,10}}'::bigint[],
     array_fill(0::bigint, ARRAY[10]) || '{{50,40,10}}'::bigint[]
    FROM generate_series(0, 2 * {queues} - 1) q, generate_series(1, 10080) m"""


def main() -> int:
    """Fill, ask, print; 0 if every page is quick enough."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with Server() as server:
        server.create("pages")
        os.environ["DATABASE_URL"] = server.dsn("pages").partition("?")[0]
        os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
        import django

        django.setup()
        client = prepared(options.rows)
        slow = 0
        print(f"{'page':<52}{'middle':>9}{'highest':>9}{'queries':>9}")
        for name, path in pages().items():
            costs = [cost(client, path) for _ in range(options.rounds + 1)][1:]
            middle, highest = statistics.median(took for took, _ in costs), max(took for took, _ in costs)
            print(f"{name:<52}{middle * 1000:>6.1f} ms{highest * 1000:>6.1f} ms{costs[0][1]:>9}", flush=True)
            slow += middle >= GOAL
        from django.db import connections

        connections.close_all()
    return 1 if slow else 0


def prepared(rows: int) -> Any:
    """The tables with so many rows of each kind; a client that may see it all."""
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import connection
    from django.test import Client

    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        for statement in (ITEMS, JOBS, MINUTES):
            began = time.monotonic()
            cursor.execute(statement.format(rows=rows, queues=QUEUES))
            print(f"filled in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        cursor.execute("VACUUM ANALYZE")
    client = Client(SERVER_NAME="localhost")
    client.force_login(User.objects.create_superuser("ada", "ada@example.org", "-"))
    return client


def pages() -> dict[str, str]:
    """Every page, and what is asked of the lists."""
    from django_workqueue.admin.pages import url
    from django_workqueue.models import WorkJob

    def at(name: str, /, *args: Any, **query: Any) -> str:
        return url("admin", name, *args, **query)

    found = {"dashboard, " + span: at("dashboard", span=span) for span in ("1h", "24h", "7d")}
    found["queues"] = at("queuerecord_changelist")
    found["a queue of jobs"] = at("queuerecord_detail", name="jobs-1")
    found["a queue of items"] = at("queuerecord_detail", name="items-1")
    found["workers"] = at("workerrecord_changelist")
    for state in ("", "ready", "scheduled", "leased", "completed", "dead", "cancelled"):
        found[f"jobs, {state or 'all'}"] = at("workjob_changelist", state=state)
        found[f"jobs, {state or 'all'}, of a queue"] = at("workjob_changelist", state=state, queue="jobs-2")
    found["jobs of a kind that are ready"] = at("workjob_changelist", state="ready", kind="kind-3")
    found["jobs, a payload that is nowhere"] = at("workjob_changelist", payload='{"order": -1}')
    found["a job"] = at("workjob_change", WorkJob.objects.order_by("-id")[0].id)
    for state in ("", "ready", "scheduled", "leased", "completed", "stalled", "arriving"):
        found[f"items, {state or 'all'}"] = at("items_changelist", state=state)
        found[f"items, {state or 'all'}, of a queue"] = at("items_changelist", state=state, queue="items-2")
    found["items, by a prefix"] = at("items_changelist", key="product-0000123")
    found["items, a prefix that is nowhere"] = at("items_changelist", key="z")
    return found


def cost(client: Any, path: str) -> tuple[float, int]:
    """Seconds that the database took for a page, and how many queries."""
    from django.db import connection

    spent: list[float] = []

    def timed(execute: Callable[..., Any], *given: Any) -> Any:
        began = time.perf_counter()
        try:
            return execute(*given)
        finally:
            spent.append(time.perf_counter() - began)

    with connection.execute_wrapper(timed):
        answer = client.get(path)
    if answer.status_code != 200:
        raise SystemExit(f"{path} answered {answer.status_code}")
    if "The database took too long" in answer.content.decode():
        raise SystemExit(f"{path} took too long")
    return sum(spent), len(spent)


if __name__ == "__main__":
    raise SystemExit(main())
