"""What each alias of `TASKS` comes to in this process: its options, and its queues with a handler for every task.

Django makes a backend object for each thread and context; what those of one alias share is here.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import Error

from django_workqueue import conf, engine
from django_workqueue.database import Connection
from django_workqueue.delivery import Job
from django_workqueue.forks import Lock
from django_workqueue.jobs import JobQueue
from django_workqueue.listed import ListedSource
from django_workqueue.sql import jobs as sql

from . import results, running, tasks
from .options import Options
from .tasks import AnyTask

logger = logging.getLogger("django_workqueue")


class Alias:
    """One alias of `TASKS`. `given` is what the setting says of it."""

    def __init__(self, backend_class: type, name: str, given: dict[str, Any], queues: set[str]) -> None:
        self.backend_class = backend_class
        self.name = name
        self.given = given
        self.names = queues
        self._options: Options | None = None
        self._queues: dict[str, JobQueue] = {}

    @property
    def options(self) -> Options:
        """Raises `ImproperlyConfigured` where the setting is wrong."""
        if self._options is None:
            self._options = Options.read(self.name, self.given)
        return self._options

    @property
    def database(self) -> str:
        """The database alias that the queues are on."""
        return self.options.database or conf.database()

    def queue(self, name: str) -> JobQueue:
        """The queue of that name. Raises `ValueError` where this process has set up another one of it."""
        with _lock:
            queue = self._queues.get(name)
            if queue is None:
                options = self.options
                queue = self._queues[name] = JobQueue._sharing(name, options.database, options.retention)
        return queue

    def bring(self, names: Sequence[str]) -> None:
        """Make the queues that a worker of `names` (none: of all) may be about to work, with their handlers.

        Raises `ImproperlyConfigured` where the setting is wrong, or a queue of it is set up otherwise.
        """
        for name in sorted(self.names or self._unlisted(names)):
            try:
                queue = self.queue(name)
            except (TypeError, ValueError) as error:
                raise ImproperlyConfigured(f"TASKS[{self.name!r}]['QUEUES']: {error}.") from error
            with _lock:
                self._bring_handlers(queue.source)

    def of_job(self, job: Job) -> Alias:
        """The alias that a job of this one's queues was enqueued with: another may have the same queue."""
        said = results.noted(job.metadata) or {}
        return living.get(said.get("backend", self.name), self)

    def learn(self, task: AnyTask) -> None:
        """There is a task that was not seen before."""
        for queue in self._queues.values():
            if queue.source.finder == self._find:
                self._handle(task, queue.source)

    def let_go(self) -> None:
        """Handle no tasks any more."""
        for queue in self._queues.values():
            if queue.source.finder == self._find:
                engine.remove_handlers(queue.source, tasks.seen)

    def _bring_handlers(self, source: ListedSource) -> None:
        """Unless another alias has done so, whose queue it is as well."""
        owner = getattr(source.finder, "__self__", None)
        if isinstance(owner, Alias) and living.get(owner.name) is owner:
            return
        options = self.options
        engine.add_finder(source, self._find, lease=options.lease, timeout=options.timeout, backoff=options.backoff)
        for task in list(tasks.seen.values()):
            self._handle(task, source)

    def _handle(self, task: AnyTask, source: ListedSource) -> None:
        """Let a queue's source have a handler for a task."""
        options = self.options
        timeout = tasks.option(task, "timeout", options.timeout)
        engine.add_handler(
            running.handler(task, self, source, timeout),
            source,
            kind=task.module_path,
            lease=options.lease,
            timeout=timeout,
            backoff=tasks.option(task, "backoff", options.backoff),
            concurrency=None,
            size=None,
        )

    def _find(self, kind: str) -> None:
        """A worker has met a kind that nobody handles: import the task, which makes it known."""
        try:
            see(tasks.find(kind))
        except Exception as error:  # noqa: BLE001 - somebody's module, which must not stop the worker
            logger.warning("tasks of %s wait, but it cannot be imported: %r", kind, error)

    def _unlisted(self, names: Sequence[str]) -> set[str]:
        """With `QUEUES` empty every name will do: those asked for, but for keyed queues, or all there are."""
        if names:
            return set(names) - {each.name for each in engine.registered() if not isinstance(each, ListedSource)}
        named = {task.queue_name for task in tasks.seen.values() if task.backend == self.name} | set(self._queues)
        connection = Connection(self.database, application="django_workqueue look")
        try:
            return named | {name for (name,) in connection.execute(sql.QUEUES.text)}
        except Error as error:
            logger.warning("the queues of TASKS[%r] cannot be looked up: %s", self.name, error)
            return named
        finally:
            connection.close()


def alias(backend_class: type, name: str, given: dict[str, Any], queues: set[str]) -> Alias:
    """What the alias comes to, as long as the setting says the same of it."""
    with _lock:
        found = living.get(name)
        if found is None or found.given is not given or found.backend_class is not backend_class:
            found = living[name] = Alias(backend_class, name, given, queues)
        return found


def see(task: AnyTask) -> None:
    """Let every alias handle a task: any of them may be given it, by `task.using(backend=...)`."""
    path = task.module_path
    known = tasks.seen.get(path)
    if known is not None and known.func is task.func:
        return
    with _lock:
        tasks.seen[path] = task
        for each in list(living.values()):
            each.learn(task)


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "TASKS":
        with _lock:
            for each in living.values():
                each.let_go()
            living.clear()
        gc.collect()  # a worker that has ended is a cycle, and what it worked must not be shared by what comes now


setting_changed.connect(_forget, dispatch_uid="django_workqueue.backend")

living: dict[str, Alias] = {}
_lock = Lock(threading.RLock)  # guards it, the queues of each, and tasks.seen
