"""Citus: our tables distributed over its nodes by queue, each queue's rows together on one.

Every statement of producers and workers names its queue, so that each runs on a single node.
"""

from __future__ import annotations

from django.db import DatabaseError, connections, transaction

from . import database, unmigrated
from .exceptions import WorkqueueError

BY_QUEUE = ("workqueue_item", "workqueue_job", "workqueue_inbox", "workqueue_minute")
LIKE = "workqueue_item"  # what the others are colocated with


class DistributionError(WorkqueueError):
    """The tables cannot be distributed; the message says why."""


def distribute(using: str | None = None) -> list[str]:
    """Distribute and colocate the tables by queue, those that are not yet; which were.

    The table of queues goes by its name, which is the queue's; that of workers is copied to every node. In one
    transaction. Raises `DistributionError` where there is no Citus.
    """
    alias = database.resolve(using)
    database.require_postgresql(connections[alias])
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("SELECT extversion FROM pg_extension WHERE extname = 'citus'")
        if cursor.fetchone() is None:
            raise DistributionError(
                f"The database {alias!r} has no Citus. On a single PostgreSQL there is nothing to distribute; a hot "
                "queue can be given a partition of its own: manage.py workqueue_partition create QUEUE."
            )
        cursor.execute("SELECT logicalrelid::regclass::text FROM pg_dist_partition")
        there = {name for (name,) in cursor.fetchall()}
        done = []
        try:
            for table, column in (*((name, "queue") for name in BY_QUEUE), ("workqueue_queue", "name")):
                if table not in there:
                    like = "default" if table == LIKE else LIKE
                    cursor.execute(
                        "SELECT create_distributed_table(%s, %s, colocate_with => %s)", [table, column, like]
                    )
                    done.append(table)
            if "workqueue_worker" not in there:
                cursor.execute("SELECT create_reference_table('workqueue_worker')")
                done.append("workqueue_worker")
        except DatabaseError as error:
            if unmigrated.is_cause(error):
                raise DistributionError(unmigrated.sentence(alias)) from error
            raise DistributionError(f"Citus refused, and nothing was changed: {error}") from error
    return done
