"""Hostile input: any text as key, queue name, kind, channel; any JSON; rows that no codec can read."""

import enum
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_workqueue import Item, JobQueue, Queue, Subscriber, publish
from django_workqueue.exceptions import InvalidKey, InvalidPayload, KeyTooLong, PayloadTooLarge
from django_workqueue.models import WorkItem, WorkJob
from django_workqueue.pubsub import Message
from django_workqueue.worker import Worker

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


# Pub/sub


@EXAMPLES
@given(channel=TEXT, message=st.one_of(TEXT, st.binary(max_size=50), JSON))
def test_a_channel_and_a_message_are_refused_or_heard_as_they_were(channel: str, message: object) -> None:
    heard: SimpleQueue[Message] = SimpleQueue()
    subscriber = Subscriber()
    try:
        subscriber.handle(channel, heard.put)
    except ValueError:
        with pytest.raises(ValueError, match="channel"):
            publish(channel, "")
        return
    with subscriber:
        try:
            publish(channel, message)  # type: ignore[arg-type]
        except (InvalidPayload, PayloadTooLarge):
            return
        told = heard.get(timeout=20)
    assert told.channel == channel
    if isinstance(message, str):
        assert told == message
    elif isinstance(message, bytes):
        assert told.bytes() == message
    else:
        assert repr(as_floats(told.json())) == repr(as_floats(json.loads(json.dumps(message))))


# Every plane of Unicode


def characters(plane: int) -> list[str]:
    """Of a plane, its first and last code points, and some in between; without surrogates, NUL, LF and CR."""
    step = max(1, 1024 // scaled(4))
    points = {*range(plane << 16, (plane + 1) << 16, step), (plane << 16) + 1, (plane << 16) + 0xFFFE}
    points |= {(plane << 16) + 0xFFFF}
    if plane == 0:
        points |= {0x7F, 0x80, 0x7FF, 0x800, 0x2028, 0x202E, 0xD7FF, 0xE000, 0xFEFF, 0xFFFD}
    return [chr(point) for point in sorted(points) if not 0xD800 <= point < 0xE000 and point not in (0, 10, 13)]


@pytest.mark.parametrize("plane", range(17))
def test_characters_of_every_plane_come_back_as_keys_kinds_payloads_and_messages(plane: int) -> None:
    some = characters(plane)
    queue = Queue[str]("hostile-planes", retention=timedelta(0))
    queue.enqueue(*some)
    with transaction.atomic():
        queue.enqueue(*(each * 3 for each in some))
    items: list[Item[str]] = []
    while claimed := queue.claim():
        items += claimed
        assert queue.complete(*claimed) == len(claimed)
    assert sorted(item.key for item in items) == sorted([*some, *(each * 3 for each in some)])

    jobs = JobQueue("hostile-planes-jobs", retention=timedelta(0))
    jobs.enqueue_many("kind", [{each: each} for each in some])
    jobs.enqueue("".join(each for each in some if unicodedata.category(each) != "Cc")[:128], some)
    payloads: list[object] = []
    while taken := jobs.claim():
        payloads += [job.payload for job in taken]
        assert jobs.complete(*taken) == len(taken)
    assert payloads == [*({each: each} for each in some), some]

    heard: SimpleQueue[Message] = SimpleQueue()
    subscriber = Subscriber()
    subscriber.handle(some[-1] * 3, heard.put)
    with subscriber:
        publish(some[-1] * 3, "".join(some)[:1900])
        assert heard.get(timeout=20) == "".join(some)[:1900]


# The edges: 512 bytes of a key or kind, 128 of a queue's name, 63 of a channel, and characters of one to four bytes


@pytest.mark.parametrize("character", ["x", "é", "€", "🐘"])
@pytest.mark.parametrize("short", range(4))
def test_what_is_one_byte_over_its_bound_is_refused_and_what_is_not_comes_back(character: str, short: int) -> None:
    def texts(most: int) -> tuple[str, str]:
        size = len(character.encode())
        fits = "a" * ((most - short) % size) + character * ((most - short) // size)
        return fits, fits + "b" * (most - len(fits.encode())) + "c"

    queue = Queue[str]("hostile-edges", retention=timedelta(0))
    key, over = texts(512)
    queue.enqueue(key)
    with pytest.raises(KeyTooLong):
        queue.enqueue(over)
    (item,) = queue.claim()
    assert (item.key, queue.complete(item)) == (key, 1)

    jobs = JobQueue("hostile-edges-jobs", retention=timedelta(0))
    jobs.enqueue(key)
    with pytest.raises(ValueError, match="512 bytes"):
        jobs.enqueue(over)
    (job,) = jobs.claim()
    assert (job.kind, jobs.complete(job)) == (key, 1)

    name, over = texts(128)
    named = Queue[str](name, retention=timedelta(0))
    named.enqueue("a")
    assert named.complete(*named.claim()) == 1
    with pytest.raises(ValueError, match="128 bytes"):
        Queue(over)

    channel, over = texts(63)
    heard: SimpleQueue[Message] = SimpleQueue()
    subscriber = Subscriber()
    subscriber.handle(channel, heard.put)
    with subscriber:
        publish(channel, "x" * 7999)
        assert len(heard.get(timeout=20)) == 7999
    with pytest.raises(ValueError, match="63 bytes"):
        publish(over)
    with pytest.raises(PayloadTooLarge):
        publish(channel, "x" * 7998 + "é")


# Rows that no codec can read, under workers


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Tile:
    zoom: int
    name: str


CODECS: dict[str, tuple[Any, list[Any]]] = {
    "int": (int, [1, -2]),
    "uuid": (UUID, [UUID(int=1), UUID(int=2)]),
    "enum": (Colour, [Colour.RED, Colour.BLUE]),
    "dataclass": (Tile, [Tile(1, "a"), Tile(2, '"')]),
    "tuple": (tuple[int, str], [(1, "a"), (2, "]")]),
}
GARBAGE = [
    *("not a number", "12x", "\u0661z", "'; --", "[", "{}", "[]", "null", "NaN", '["a", 1]', "[1]", '[1, "a", 2]'),
    *(
        "[" * 500,
        "9" * 511 + "x",
        "1e999",
        '{"zoom": 1}',
        "\\",
        "\ud7ff" * 100,
        "[1, 2]",
        '[null, "a"]',
        '"red"',
        "RED",
    ),
]


@pytest.mark.parametrize("codec", CODECS)
def test_keys_that_no_codec_can_read_are_put_off_with_their_error_while_a_worker_works_the_others(codec: str) -> None:
    key, good = CODECS[codec]
    queue: Queue[Any] = Queue(f"hostile-{codec}", key=key)
    worked: list[object] = []
    queue.handler(lambda item: worked.append(item.key))
    queue.enqueue(*good)
    insert(
        "INSERT INTO workqueue_item (queue, key, enqueued_at, available_at)"
        " VALUES (%s, %s, now(), now() - interval '1 minute')",
        [(queue.name, each) for each in GARBAGE],
    )
    insert(
        "INSERT INTO workqueue_inbox (queue, key, priority, available_at, tx) VALUES (%s, %s, 0, now(), 1)",
        [(queue.name, f"{each[:500]} inbox") for each in GARBAGE],
    )
    Worker([queue]).drain()
    assert sorted(worked, key=repr) == sorted(good, key=repr)
    rows = WorkItem.objects.filter(queue=queue.name, completed_at=None).values_list("attempts", "last_error")
    assert len(rows) == 2 * len(GARBAGE)
    assert all(attempts >= 1 and error for attempts, error in rows)
    WorkItem.objects.filter(queue=queue.name).delete()


def test_jobs_that_no_codec_can_read_fail_while_a_worker_works_the_others() -> None:
    """What other programs store: numbers of too many digits, nests too deep, kinds of any sort, odd bookkeeping."""
    jobs = JobQueue("hostile-rows", max_attempts=1)
    worked: list[object] = []
    jobs.handler("kind")(lambda job: worked.append(job.payload))
    odd = ["9" * 5000, "1e9999", "[" * 5000 + "]" * 5000, '{"a":' * 5000 + "1" + "}" * 5000, '"\\ud83d\\udc18"']
    for payload in odd:
        insert(INSERT_JOB, [(jobs.name, "kind", payload, "[]", "{}", "[]")])
    deep, long = "[" * 5000 + "]" * 5000, "[" + "9" * 5000 + "]"
    for errors in ('["text"]', "[null]", "[1]", "[[]]", "[{}]", f"[{deep}]", long, '[{"type": 1, "message": [2]}]'):
        insert(INSERT_JOB, [(jobs.name, "kind", '"odd"', errors, "{}", "[]")])
    for metadata in ('{"task": 1}', '{"task": null}', '{"trace": 1}', f'{{"a": {deep}}}', f'{{"a": {long}}}'):
        insert(INSERT_JOB, [(jobs.name, "kind", '"odd"', "[]", metadata, "[]")])
    for workers in ("[null]", "[1, {}]", f"[{deep}]", long):
        insert(INSERT_JOB, [(jobs.name, "kind", '"odd"', "[]", "{}", workers)])
    for whole in (
        ("{}", "{}", "[]"),
        ("null", "{}", "[]"),
        ("[]", "[]", "[]"),
        ("[]", '"task"', "[]"),
        ("[]", "{}", '"x"'),
    ):
        with pytest.raises(IntegrityError):
            insert(INSERT_JOB, [(jobs.name, "kind", '"odd"', *whole)])
    for kind in ("", "%s", "\u2028", "os.system", "x" * 5000):
        insert(INSERT_JOB, [(jobs.name, kind, "1", "[]", "{}", "[]")])
    jobs.enqueue_many("kind", range(20))
    Worker([jobs]).drain()
    assert set(range(20)) <= {each for each in worked if isinstance(each, int)}
    left = WorkJob.objects.filter(queue=jobs.name, kind="kind", outcome=None).values_list("id", flat=True)
    assert list(left) == []
    assert WorkJob.objects.filter(queue=jobs.name, outcome=None, attempts=0).exclude(kind="kind").count() == 5
    WorkJob.objects.filter(queue=jobs.name).delete()


INSERT_JOB = (
    "INSERT INTO workqueue_job (queue, kind, payload, max_attempts, errors, metadata, worker_ids)"
    " VALUES (%s, %s, %s::jsonb, 1, %s::jsonb, %s::jsonb, %s::jsonb)"
)


def insert(statement: str, rows: Sequence[Sequence[object]]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(statement, rows)
