"""Jobs that other programs stored: what cannot be a job's bookkeeping is refused, what cannot be read fails alone."""

import itertools

import pytest
from django.db import IntegrityError, connection

from django_workqueue import JobQueue
from django_workqueue.models import WorkJob
from django_workqueue.worker import Worker

pytestmark = pytest.mark.django_db(transaction=True)

_numbers = itertools.count(1)
DEEP, LONG = "[" * 5000 + "]" * 5000, "9" * 5000


def store(queue: str, *, errors: str = "[]", metadata: str = "{}", worker_ids: str = "[]") -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO workqueue_job (queue, kind, payload, max_attempts, errors, metadata, worker_ids)"
            " VALUES (%s, 'kind', '\"foreign\"', 1, %s, %s, %s) RETURNING id",
            [queue, errors, metadata, worker_ids],
        )
        (number,) = cursor.fetchone()
    return int(number)


@pytest.mark.parametrize("column", ["errors", "metadata", "worker_ids"])
@pytest.mark.parametrize("value", ["null", '"task"', "1"])
def test_bookkeeping_of_another_shape_is_refused(column: str, value: str) -> None:
    """Such a row would keep every claim of its queue from being made."""
    with pytest.raises(IntegrityError, match=f"workqueue_job_{column}_check"):
        store("foreign", **{column: value})


@pytest.mark.parametrize(
    ("column", "value", "runs"),
    [
        ("errors", '["text"]', True),
        ("errors", "[null]", True),
        ("errors", f"[{LONG}]", True),
        ("errors", f'[{{"message": {LONG}}}]', False),
        ("metadata", f'{{"a": {LONG}}}', False),
        ("metadata", '{"task": 1}', True),
        ("worker_ids", f"[{LONG}]", True),
        ("worker_ids", f"[{DEEP}]", True),
    ],
)
def test_bookkeeping_that_cannot_be_read_holds_up_no_other_job(column: str, value: str, runs: bool) -> None:
    jobs = JobQueue(f"foreign-{next(_numbers)}")
    worked: list[object] = []
    jobs.handler("kind")(lambda job: worked.append(job.payload))
    number = store(jobs.name, **{column: value})
    jobs.enqueue("kind", "ours")
    Worker([jobs]).drain()
    assert "ours" in worked
    assert ("foreign" in worked) == runs
    assert WorkJob.objects.filter(id=number).values_list("outcome", flat=True)[0] == ("completed" if runs else "dead")
