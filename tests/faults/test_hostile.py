"""Hostile input: any text as key, queue name, kind, channel; any JSON; rows that no codec can read."""

import json
from datetime import timedelta

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_workqueue import JobQueue, Queue
from django_workqueue.exceptions import InvalidKey, InvalidPayload

from .stage import scaled

NASTY = st.sampled_from(
    ["%", "%s", "%(q)s", "'", '"', "\\", "$$", "{}", "{Q}", ";--", "\0", "\n", "\u2028", "\ud800", "a" * 512, "é" * 256]
)
TEXT = st.one_of(
    st.text(max_size=600), st.builds("".join, st.lists(st.one_of(NASTY, st.text(max_size=20)), max_size=5))
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=10,
)
EXAMPLES = settings(
    max_examples=scaled(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
pytestmark = pytest.mark.django_db(transaction=True)


def as_floats(value: object) -> object:
    """What `jsonb` keeps of it: it knows no types of numbers, no negative zero, and no order of members."""
    if isinstance(value, dict):
        return {name: as_floats(each) for name, each in sorted(value.items())}
    if isinstance(value, list):
        return [as_floats(each) for each in value]
    return float(value) + 0.0 if isinstance(value, (int, float)) and not isinstance(value, bool) else value


@EXAMPLES
@given(key=TEXT)
def test_a_key_is_refused_or_comes_back_as_it_was(key: str) -> None:
    queue = Queue[str]("hostile-keys", retention=timedelta(0))
    try:
        queue.enqueue(key)
    except InvalidKey:
        return
    (item,) = queue.claim()
    assert item.key == key
    assert queue.complete(item) == 1


@EXAMPLES
@given(name=TEXT, key=st.sampled_from(["a", "%s", "'"]))
def test_a_queue_name_is_refused_or_is_a_queue_like_any_other(name: str, key: str) -> None:
    try:
        queue = Queue[str](name, retention=timedelta(0))
    except ValueError:
        return
    queue.enqueue(key)
    (item,) = queue.claim()
    assert (item.queue, item.key) == (name, key)
    queue.stats()
    queue.pause()
    assert queue.is_paused()
    queue.resume()
    assert queue.complete(item) == 1
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM workqueue_queue WHERE name = %s", [name])


@EXAMPLES
@given(kind=TEXT, payload=JSON)
def test_kind_and_payload_are_refused_or_come_back_as_they_were(kind: str, payload: object) -> None:
    jobs = JobQueue("hostile-jobs", retention=timedelta(0))
    try:
        jobs.enqueue(kind, payload)  # type: ignore[arg-type]
    except (InvalidPayload, ValueError):
        return
    (job,) = jobs.claim()
    assert job.kind == kind
    assert repr(as_floats(job.payload)) == repr(as_floats(json.loads(json.dumps(payload))))
    assert jobs.complete(job) == 1


def test_rows_that_no_codec_can_read_do_not_hold_up_the_others() -> None:
    numbers = Queue("hostile-numbers", key=int)
    with connection.cursor() as cursor:
        for key in ("not a number", "12x", "\u0661" + "z", "'; --"):
            cursor.execute(
                "INSERT INTO workqueue_item (queue, key, enqueued_at, available_at)"
                " VALUES ('hostile-numbers', %s, now(), now() - interval '1 minute')",
                [key],
            )
    numbers.enqueue(1, 2, 3)
    claimed: list[int] = []
    for _ in range(3):
        claimed += [item.key for item in numbers.claim()]
    assert sorted(claimed) == [1, 2, 3]
