"""A task of Django's under its old and its new name. The old code has the one, the new code the other, `both` both."""

import os

from django.tasks import TaskContext, task

from .tasks import noted, rest, seconds

VERSION = os.environ.get("FAULTS_VERSION", "new")


def tell(context: TaskContext, name: str) -> None:
    job = int(context.task_result.id)
    with noted("faults-tasks", name, context.attempt, job=job):
        rest(seconds(name))


if VERSION in {"old", "both"}:

    @task(queue_name="faults-tasks", takes_context=True)
    def announce(context: TaskContext, name: str) -> None:
        tell(context, name)


if VERSION in {"new", "both"}:

    @task(queue_name="faults-tasks", takes_context=True)
    def proclaim(context: TaskContext, name: str) -> None:
        tell(context, name)


current = announce if VERSION == "old" else proclaim
