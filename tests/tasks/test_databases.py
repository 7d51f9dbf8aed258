"""`OPTIONS["database"]`: tasks on another database than the default one."""

from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from django_workqueue.models import WorkJob
from django_workqueue.worker import Worker
from tests.tasks.conftest import TASKS, with_options
from tests.tasks.native import default_task_backend, task_backends
from tests.tasks.shop import tasks

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

BOTH: dict[str, Any] = {
    **with_options(database="other"),
    "here": {**TASKS["default"], "QUEUES": ["default"]},
}


@override_settings(TASKS=BOTH)
def test_tasks_of_another_database_go_there_and_come_back_from_there() -> None:
    for alias in ("default", "other"):
        WorkJob.objects.using(alias).all().delete()
    there, here = tasks.meaning_of_life.enqueue(), tasks.meaning_of_life.using(backend="here").enqueue()
    assert WorkJob.objects.using("other").get().kind == tasks.meaning_of_life.module_path
    assert WorkJob.objects.using("default").get().kind == tasks.meaning_of_life.module_path
    assert Worker(["default"]).drain().completed == 2
    there.refresh()
    here.refresh()
    assert (there.return_value, here.return_value) == (42, 42)
    assert task_backends["here"].get_result(here.id) == here


@override_settings(TASKS=BOTH)
def test_a_transaction_on_another_database_is_not_ridden() -> None:
    with transaction.atomic():
        result = tasks.noop.enqueue()
        transaction.set_rollback(True)
    assert default_task_backend.get_result(result.id) == result
