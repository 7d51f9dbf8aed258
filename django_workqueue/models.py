"""Django's view of the tables, for the ORM, the admin and permissions.

The rows that producers and workers write go through the managers' raw statements; the tables themselves are
made by the migration's SQL (`sql/tables.py`).
"""

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from .managers import WorkItemManager, WorkJobManager
from .status import JobStatus
from .text import told


class HistogramField(models.Field):  # type: ignore[type-arg]
    """Counts by bucket: a `bigint[]`, read as a list. (`ArrayField` would want `django.contrib.postgres` installed.)"""

    def db_type(self, connection: Any) -> str:
        """The column's type."""
        return "bigint[]"


class JSONField(models.JSONField):
    """Django's; what Python's JSON does not take, it reads as text: people look at such a row to find out why."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """The value, or its text where another program stored too many digits or levels."""
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return value

    def deconstruct(self) -> Any:
        """To migrations it is Django's own."""
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


class WorkItem(models.Model):
    """One key of a keyed queue, waiting, leased, stalled or completed. Keys are encoded text."""

    pk = models.CompositePrimaryKey("queue", "key")
    queue = models.TextField(_("queue"), db_collation="C")
    key = models.TextField(_("key"), db_collation="C")
    priority = models.IntegerField(_("priority"), default=0)
    attempts = models.IntegerField(_("attempts"), default=0)
    enqueued_at = models.DateTimeField(_("enqueued at"))
    available_at = models.DateTimeField(_("available at"))
    requeue_at = models.DateTimeField(_("asked for again for"), null=True, blank=True)
    lease_until = models.DateTimeField(_("leased until"))
    lease_token = models.BigIntegerField(_("lease token"), default=0)
    completed_at = models.DateTimeField(_("completed at"), null=True, blank=True)
    stalled_at = models.DateTimeField(_("stalled at"), null=True, blank=True)
    last_error = models.TextField(_("last error"), null=True, blank=True)

    objects = WorkItemManager()

    class Meta:
        db_table = "workqueue_item"
        verbose_name = _("item")
        verbose_name_plural = _("items")

    def __str__(self) -> str:
        return f"{self.queue}: {self.key}"


class WorkJob(models.Model):
    """One payload job. The database's primary key is `(id, queue)`; `id` alone is unique by its sequence."""

    id = models.BigAutoField(primary_key=True)
    queue = models.TextField(_("queue"), db_collation="C")
    kind = models.TextField(_("kind"), db_collation="C")
    payload = JSONField(_("payload"), null=True, blank=True)
    priority = models.IntegerField(_("priority"), default=0)
    attempts = models.IntegerField(_("attempts"), default=0)
    max_attempts = models.IntegerField(_("max attempts"))
    enqueued_at = models.DateTimeField(_("enqueued at"))
    available_at = models.DateTimeField(_("available at"))
    lease_until = models.DateTimeField(_("leased until"))
    lease_token = models.BigIntegerField(_("lease token"), default=0)
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    outcome = models.TextField(_("outcome"), null=True, blank=True)
    result = JSONField(_("result"), null=True, blank=True)
    errors = JSONField(_("errors"), default=list, blank=True)
    worker_ids = JSONField(_("workers"), default=list, blank=True)
    metadata = JSONField(_("metadata"), default=dict, blank=True)

    objects = WorkJobManager()

    class Meta:
        db_table = "workqueue_job"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")

    def __str__(self) -> str:
        return f"{self.queue}: {self.kind} {self.id}"

    @property
    def status(self) -> JobStatus:
        """Where the job stands. A lapsed lease counts as running until somebody takes it up."""
        if self.outcome is not None:
            return JobStatus(self.outcome)
        return JobStatus.RUNNING if self.lease_token else JobStatus.PENDING

    @property
    def last_error(self) -> str | None:
        """The newest error as `Type: message`."""
        return told(self.errors[-1]) if self.errors else None


class InboxEntry(models.Model):
    """An enqueue made inside a transaction, not yet folded into the set of keys."""

    id = models.BigAutoField(primary_key=True)
    queue = models.TextField(_("queue"), db_collation="C")
    key = models.TextField(_("key"), db_collation="C")
    priority = models.IntegerField(_("priority"))
    available_at = models.DateTimeField(_("available at"))
    tx = models.BigIntegerField(_("transaction"))

    class Meta:
        db_table = "workqueue_inbox"
        verbose_name = _("inbox entry")
        verbose_name_plural = _("inbox")

    def __str__(self) -> str:
        return f"{self.queue}: {self.key}"


class QueueRecord(models.Model):
    """A queue that was seen: whether it is paused, and how it was set up."""

    name = models.TextField(_("name"), primary_key=True, db_collation="C")
    face = models.TextField(_("face"))
    settings = JSONField(_("settings"), default=dict, blank=True)
    paused_at = models.DateTimeField(_("paused at"), null=True, blank=True)
    seen_at = models.DateTimeField(_("last seen"), null=True, blank=True)

    class Meta:
        db_table = "workqueue_queue"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")

    def __str__(self) -> str:
        return self.name


class Dashboard(QueueRecord):
    """What the admin lists as its dashboard. (It lists models, by their tables.)"""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("dashboard")
        verbose_name_plural = _("dashboard")


class Items(QueueRecord):
    """What the admin lists as the items: it registers no model whose primary key is composite, as `WorkItem`'s is."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("item")
        verbose_name_plural = _("items")


class WorkerRecord(models.Model):
    """A worker process, for people to look at; no decision reads it."""

    id = models.TextField(primary_key=True, db_collation="C")
    host = models.TextField(_("host"))
    pid = models.IntegerField(_("process id"))
    started_at = models.DateTimeField(_("started at"))
    seen_at = models.DateTimeField(_("last seen"))
    queues = JSONField(_("queues"), default=list, blank=True)
    concurrency = models.IntegerField(_("concurrency"))
    in_flight = models.IntegerField(_("in flight"), default=0)

    class Meta:
        db_table = "workqueue_worker"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")

    def __str__(self) -> str:
        return self.id


class Minute(models.Model):
    """What happened to one queue (and kind of job) within one minute."""

    pk = models.CompositePrimaryKey("queue", "kind", "minute")
    queue = models.TextField(_("queue"), db_collation="C")
    kind = models.TextField(_("kind"), db_collation="C", default="")
    minute = models.DateTimeField(_("minute"))
    enqueued = models.BigIntegerField(_("enqueued"), default=0)
    started = models.BigIntegerField(_("started"), default=0)
    completed = models.BigIntegerField(_("completed"), default=0)
    failed = models.BigIntegerField(_("failed"), default=0)
    dead = models.BigIntegerField(_("dead"), default=0)
    reclaimed = models.BigIntegerField(_("reclaimed"), default=0)
    lost = models.BigIntegerField(_("lost leases"), default=0)
    wait_us = models.BigIntegerField(_("wait time, µs"), default=0)
    run_us = models.BigIntegerField(_("run time, µs"), default=0)
    wait_histogram = HistogramField(_("wait times"), default=list)
    run_histogram = HistogramField(_("run times"), default=list)

    class Meta:
        db_table = "workqueue_minute"
        verbose_name = _("minute")
        verbose_name_plural = _("minutes")

    def __str__(self) -> str:
        return f"{self.queue} {self.minute:%Y-%m-%d %H:%M}"
