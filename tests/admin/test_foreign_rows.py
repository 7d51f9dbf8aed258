"""Jobs whose JSON, stored by another program, Python does not take: listed and shown, as text."""

import pytest
from django.db import connection

from django_workqueue.models import WorkJob
from tests.admin.conftest import address

pytestmark = pytest.mark.django_db

LONG, DEEP = "9" * 5000, "[" * 5000 + "]" * 5000


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("payload", LONG),
        ("payload", DEEP),
        ("result", LONG),
        ("errors", f"[{LONG}]"),
        ("errors", "[null, 1, {}]"),
        ("metadata", f'{{"task": {LONG}}}'),
        ("worker_ids", f"[{LONG}]"),
    ],
)
def test_a_job_that_cannot_be_read_is_listed_and_shown(admin_client, column, value):
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO workqueue_job (queue, kind, max_attempts, outcome, finished_at, {column})"
            " VALUES ('foreign', 'kind', 1, 'dead', now(), %s)",
            [value],
        )
    (number,) = WorkJob.objects.filter(queue="foreign").values_list("id", flat=True)
    assert admin_client.get(address("workjob_changelist", state="dead")).status_code == 200
    answer = admin_client.get(address("workjob_change", number))
    assert answer.status_code == 200
