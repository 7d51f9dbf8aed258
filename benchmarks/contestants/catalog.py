"""Who is measured, with which settings and how much work.

Owns the table of contestants; their adapters lie beside it. "Defaults" is what a project gets that sets nothing. "Best"
is the fastest durable combination of settings that the peer documents, found by trying.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Setup:
    """One way to configure a contestant. `says` is for the table; `jobs` is how many it drains in a few seconds."""

    label: str
    says: str
    jobs: int
    settings: Settings = field(default_factory=dict)
    several: Settings | None = None  # on top of `settings` when two processes are one command; else it is started twice
    processes: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Contestant:
    """One queue. `install` begins with its package, and `pending` is its unfinished jobs, what follows FROM in SQL."""

    name: str
    adapter: str
    language: Literal["python", "node", "ours"]
    install: tuple[str, ...]
    pending: str
    setups: tuple[Setup, ...]
    bulk: bool = True
    enqueuing: tuple[str, ...] = ("defaults",)  # labels of the setups that differ in enqueuing
    latency: str | None = "defaults"  # label of the setup that waits best when idle
    snapshot: tuple[str, int] | None = None  # setup and backlog of the drain under a held snapshot

    def setup(self, label: str) -> Setup:
        """The setup of that label."""
        return next(setup for setup in self.setups if setup.label == label)


def everybody() -> tuple[Contestant, ...]:
    """Us, the floor and the peers, in the order of the tables."""
    return (ITEMS, JOBS, BARE_ITEMS, BARE_JOBS, *peers())


def peers() -> tuple[Contestant, ...]:
    """The others."""
    return (GRAPHILE_WORKER, PG_BOSS, PGQUEUER, CHANCY, PROCRASTINATE, PROCRASTINATE_DJANGO, DJANGO_TASKS_DB, DJANGO_Q2)


ITEMS = Contestant(
    "django_workqueue, items",
    "ours_items",
    "ours",
    ("django-workqueue",),
    "workqueue_item WHERE completed_at IS NULL AND stalled_at IS NULL",
    (
        Setup("defaults", "", 100_000, several={"worker": {"processes": 2}}, processes=(1, 2)),
        Setup("retention 0", "deletes what is done", 100_000, {"delete": True}),
    ),
    snapshot=("defaults", 200_000),
)

JOBS = Contestant(
    "django_workqueue, jobs",
    "ours_jobs",
    "ours",
    ("django-workqueue",),
    "workqueue_job WHERE outcome IS NULL",
    (
        Setup("defaults", "", 100_000, several={"worker": {"processes": 2}}, processes=(1, 2)),
        Setup("retention 0", "deletes what is done", 100_000, {"delete": True}),
    ),
    snapshot=("defaults", 200_000),
)

BARE_ITEMS = Contestant(
    "bare psycopg, items",
    "bare_items",
    "ours",
    ("psycopg",),
    ITEMS.pending,
    (Setup("defaults", "claim 500, complete 500, a connection each", 100_000),),
    latency=None,
)

BARE_JOBS = Contestant(
    "bare psycopg, jobs",
    "bare_jobs",
    "ours",
    ("psycopg",),
    JOBS.pending,
    (Setup("defaults", "claim 500, complete 500, a connection each", 100_000),),
    latency=None,
)

GRAPHILE_WORKER = Contestant(
    "graphile-worker",
    "graphile_worker",
    "node",
    ("graphile-worker",),
    "graphile_worker._private_jobs",
    (
        Setup("defaults", "", 3_000),
        Setup(
            "best",
            "localQueue 500, concurrentJobs 24, completeJobBatchDelay 0",
            60_000,
            {"worker": {"localQueue": {"size": 500}, "concurrentJobs": 24, "completeJobBatchDelay": 0}},
            processes=(1, 2),
        ),
    ),
    latency="best",
    snapshot=("best", 100_000),
)

PG_BOSS = Contestant(
    "pg-boss",
    "pg_boss",
    "node",
    ("pg-boss",),
    "pgboss.job WHERE name = 'noop' AND state < 'completed'",
    (
        Setup("defaults", "", 100),
        Setup(
            "best",
            "batchSize 3000, burstWhenBatchFull, NOTIFY",
            60_000,
            {
                "boss": {"useListenNotify": True},
                "queue": {"notify": True},
                "work": {"batchSize": 3000, "burstWhenBatchFull": True},
            },
            processes=(1, 2),
        ),
    ),
    latency="best",
    snapshot=("best", 100_000),
)

PGQUEUER = Contestant(
    "PgQueuer",
    "pgqueuer",
    "python",
    ("pgqueuer[asyncpg]", "uvloop"),
    "pgqueuer",
    (
        Setup("defaults", "asyncpg", 4_000),
        Setup(
            "best",
            "asyncpg pool of 4, uvloop, batch_size 1000",
            30_000,
            {"uvloop": True, "pool": 4, "run": {"batch_size": 1000}},
            processes=(1, 2),
        ),
    ),
    latency="best",
    snapshot=("best", 60_000),
)

CHANCY = Contestant(
    "chancy",
    "chancy",
    "python",
    ("chancy", "psycopg[binary,pool]"),
    "chancy_jobs WHERE state NOT IN ('succeeded', 'failed')",
    (
        Setup("defaults", "", 100),
        Setup(
            "best",
            "AsyncExecutor, concurrency 1000, eager_polling",
            10_000,
            {
                "async": True,
                "queue": {
                    "executor": "chancy.executors.asyncex.AsyncExecutor",
                    "concurrency": 1000,
                    "eager_polling": True,
                },
            },
            processes=(1, 2),
        ),
    ),
    latency="best",
)

PROCRASTINATE = Contestant(
    "Procrastinate",
    "procrastinate",
    "python",
    ("procrastinate", "psycopg[binary,pool]"),
    "procrastinate_jobs WHERE status IN ('todo', 'doing')",
    (
        Setup("defaults", "", 600),
        Setup(
            "best",
            "concurrency 20, delete_jobs always",
            800,
            {"worker": {"concurrency": 20, "delete_jobs": "always"}},
            processes=(1, 2),
        ),
    ),
)

PROCRASTINATE_DJANGO = Contestant(
    "Procrastinate in Django",
    "procrastinate_django",
    "python",
    ("procrastinate[django]", "psycopg[binary,pool]"),
    PROCRASTINATE.pending,
    (
        Setup("defaults", "", 500),
        Setup(
            "best",
            "concurrency 20, delete_jobs always",
            700,
            {"arguments": ["--concurrency", "20", "--delete-jobs", "always"]},
            processes=(1, 2),
        ),
    ),
)

DJANGO_TASKS_DB = Contestant(
    "django-tasks-db",
    "django_tasks_db",
    "python",
    ("django-tasks-db", "psycopg[binary]"),
    "django_tasks_database_dbtaskresult WHERE status IN ('READY', 'RUNNING')",
    (
        Setup("defaults", "", 150),
        Setup(
            "best",
            "CONN_MAX_AGE None, verbosity 0",
            300,
            {"database": {"CONN_MAX_AGE": None}, "worker": {"verbosity": 0}},
            processes=(1, 2),
        ),
    ),
    bulk=False,
)

DJANGO_Q2 = Contestant(
    "django-q2, ORM broker",
    "django_q2",
    "python",
    ("django-q2", "psycopg[binary]"),
    "django_q_ormq",
    (
        Setup("defaults", "2 workers", 100),
        Setup(
            "best",
            "CONN_MAX_AGE None, bulk 100, save_limit -1, queue_limit 1000, recycle 100000",
            800,
            {
                "database": {"CONN_MAX_AGE": None},
                "cluster": {"workers": 1, "bulk": 100, "save_limit": -1, "queue_limit": 1000, "recycle": 100_000},
            },
            several={"cluster": {"workers": 2, "bulk": 100, "save_limit": -1, "queue_limit": 1000, "recycle": 100_000}},
            processes=(1, 2),
        ),
    ),
    bulk=False,
    enqueuing=("defaults", "best"),
)
