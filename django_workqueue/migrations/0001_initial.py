"""The six tables of the queue: made by SQL of our own, described to Django in its state."""

from typing import Any

from django.conf import settings
from django.db import migrations, models, router

import django_workqueue.models
from django_workqueue.database import require_version
from django_workqueue.exceptions import UnsupportedDatabase
from django_workqueue.sql import tables


class Tables(migrations.RunSQL):
    """Refused in a sentence on anything but PostgreSQL 14 or newer.

    Nothing is done there, and nobody stopped, where `WORKQUEUE_DATABASE` has named another alias: a project's default
    database may be of any kind.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Make the tables."""
        if _belongs_on(schema_editor.connection):
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop them."""
        if _belongs_on(schema_editor.connection):
            super().database_backwards(app_label, schema_editor, from_state, to_state)


def _belongs_on(connection: Any) -> bool:
    if not router.allow_migrate(connection.alias, "workqueue"):
        return False
    try:
        require_version(connection)
    except UnsupportedDatabase:
        if getattr(settings, "WORKQUEUE_DATABASE", connection.alias) == connection.alias:
            raise
        return False
    return True


class Migration(migrations.Migration):
    """Reversible: backwards drops the tables."""

    initial = True

    dependencies = []

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[Tables(tables.CREATE, tables.DROP)],
            state_operations=[
                migrations.CreateModel(
                    name="InboxEntry",
                    fields=[
                        ("id", models.BigAutoField(primary_key=True, serialize=False)),
                        ("queue", models.TextField(db_collation="C", verbose_name="queue")),
                        ("key", models.TextField(db_collation="C", verbose_name="key")),
                        ("priority", models.IntegerField(verbose_name="priority")),
                        ("available_at", models.DateTimeField(verbose_name="available at")),
                        ("tx", models.BigIntegerField(verbose_name="transaction")),
                    ],
                    options={
                        "verbose_name": "inbox entry",
                        "verbose_name_plural": "inbox",
                        "db_table": "workqueue_inbox",
                    },
                ),
                migrations.CreateModel(
                    name="Minute",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "queue", "kind", "minute", blank=True, editable=False, primary_key=True, serialize=False
                            ),
                        ),
                        ("queue", models.TextField(db_collation="C", verbose_name="queue")),
                        ("kind", models.TextField(db_collation="C", default="", verbose_name="kind")),
                        ("minute", models.DateTimeField(verbose_name="minute")),
                        ("enqueued", models.BigIntegerField(default=0, verbose_name="enqueued")),
                        ("started", models.BigIntegerField(default=0, verbose_name="started")),
                        ("completed", models.BigIntegerField(default=0, verbose_name="completed")),
                        ("failed", models.BigIntegerField(default=0, verbose_name="failed")),
                        ("dead", models.BigIntegerField(default=0, verbose_name="dead")),
                        ("reclaimed", models.BigIntegerField(default=0, verbose_name="reclaimed")),
                        ("lost", models.BigIntegerField(default=0, verbose_name="lost leases")),
                        ("wait_us", models.BigIntegerField(default=0, verbose_name="wait time, µs")),
                        ("run_us", models.BigIntegerField(default=0, verbose_name="run time, µs")),
                        (
                            "wait_histogram",
                            django_workqueue.models.HistogramField(default=list, verbose_name="wait times"),
                        ),
                        (
                            "run_histogram",
                            django_workqueue.models.HistogramField(default=list, verbose_name="run times"),
                        ),
                    ],
                    options={
                        "verbose_name": "minute",
                        "verbose_name_plural": "minutes",
                        "db_table": "workqueue_minute",
                    },
                ),
                migrations.CreateModel(
                    name="QueueRecord",
                    fields=[
                        (
                            "name",
                            models.TextField(db_collation="C", primary_key=True, serialize=False, verbose_name="name"),
                        ),
                        ("face", models.TextField(verbose_name="face")),
                        ("settings", models.JSONField(blank=True, default=dict, verbose_name="settings")),
                        ("paused_at", models.DateTimeField(blank=True, null=True, verbose_name="paused at")),
                        ("seen_at", models.DateTimeField(blank=True, null=True, verbose_name="last seen")),
                    ],
                    options={
                        "verbose_name": "queue",
                        "verbose_name_plural": "queues",
                        "db_table": "workqueue_queue",
                    },
                ),
                migrations.CreateModel(
                    name="Dashboard",
                    fields=[],
                    options={
                        "verbose_name": "dashboard",
                        "verbose_name_plural": "dashboard",
                        "proxy": True,
                        "default_permissions": (),
                        "indexes": [],
                        "constraints": [],
                    },
                    bases=("workqueue.queuerecord",),
                ),
                migrations.CreateModel(
                    name="Items",
                    fields=[],
                    options={
                        "verbose_name": "item",
                        "verbose_name_plural": "items",
                        "proxy": True,
                        "default_permissions": (),
                        "indexes": [],
                        "constraints": [],
                    },
                    bases=("workqueue.queuerecord",),
                ),
                migrations.CreateModel(
                    name="WorkerRecord",
                    fields=[
                        ("id", models.TextField(db_collation="C", primary_key=True, serialize=False)),
                        ("host", models.TextField(verbose_name="host")),
                        ("pid", models.IntegerField(verbose_name="process id")),
                        ("started_at", models.DateTimeField(verbose_name="started at")),
                        ("seen_at", models.DateTimeField(verbose_name="last seen")),
                        ("queues", models.JSONField(blank=True, default=list, verbose_name="queues")),
                        ("concurrency", models.IntegerField(verbose_name="concurrency")),
                        ("in_flight", models.IntegerField(default=0, verbose_name="in flight")),
                    ],
                    options={
                        "verbose_name": "worker",
                        "verbose_name_plural": "workers",
                        "db_table": "workqueue_worker",
                    },
                ),
                migrations.CreateModel(
                    name="WorkItem",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "queue", "key", blank=True, editable=False, primary_key=True, serialize=False
                            ),
                        ),
                        ("queue", models.TextField(db_collation="C", verbose_name="queue")),
                        ("key", models.TextField(db_collation="C", verbose_name="key")),
                        ("priority", models.IntegerField(default=0, verbose_name="priority")),
                        ("attempts", models.IntegerField(default=0, verbose_name="attempts")),
                        ("enqueued_at", models.DateTimeField(verbose_name="enqueued at")),
                        ("available_at", models.DateTimeField(verbose_name="available at")),
                        ("requeue_at", models.DateTimeField(blank=True, null=True, verbose_name="asked for again for")),
                        ("lease_until", models.DateTimeField(verbose_name="leased until")),
                        ("lease_token", models.BigIntegerField(default=0, verbose_name="lease token")),
                        ("completed_at", models.DateTimeField(blank=True, null=True, verbose_name="completed at")),
                        ("stalled_at", models.DateTimeField(blank=True, null=True, verbose_name="stalled at")),
                        ("last_error", models.TextField(blank=True, null=True, verbose_name="last error")),
                    ],
                    options={
                        "verbose_name": "item",
                        "verbose_name_plural": "items",
                        "db_table": "workqueue_item",
                    },
                ),
                migrations.CreateModel(
                    name="WorkJob",
                    fields=[
                        ("id", models.BigAutoField(primary_key=True, serialize=False)),
                        ("queue", models.TextField(db_collation="C", verbose_name="queue")),
                        ("kind", models.TextField(db_collation="C", verbose_name="kind")),
                        ("payload", models.JSONField(blank=True, null=True, verbose_name="payload")),
                        ("priority", models.IntegerField(default=0, verbose_name="priority")),
                        ("attempts", models.IntegerField(default=0, verbose_name="attempts")),
                        ("max_attempts", models.IntegerField(verbose_name="max attempts")),
                        ("enqueued_at", models.DateTimeField(verbose_name="enqueued at")),
                        ("available_at", models.DateTimeField(verbose_name="available at")),
                        ("lease_until", models.DateTimeField(verbose_name="leased until")),
                        ("lease_token", models.BigIntegerField(default=0, verbose_name="lease token")),
                        ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="started at")),
                        ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished at")),
                        ("outcome", models.TextField(blank=True, null=True, verbose_name="outcome")),
                        ("result", models.JSONField(blank=True, null=True, verbose_name="result")),
                        ("errors", models.JSONField(blank=True, default=list, verbose_name="errors")),
                        ("worker_ids", models.JSONField(blank=True, default=list, verbose_name="workers")),
                        ("metadata", models.JSONField(blank=True, default=dict, verbose_name="metadata")),
                    ],
                    options={
                        "verbose_name": "job",
                        "verbose_name_plural": "jobs",
                        "db_table": "workqueue_job",
                    },
                ),
            ],
        ),
    ]
