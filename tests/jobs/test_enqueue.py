"""What an enqueue of jobs promises, outside transactions, and what it refuses. Inside: test_transactions.py."""

import os
import threading
import time
from datetime import UTC, datetime, timedelta
from enum import Enum
from zoneinfo import ZoneInfo

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import connections, transaction
from django.utils import timezone

from django_workqueue import EnqueueTimeout, InvalidPayload, Job, JobQueue, Queue, QueueClosed, Worker
from django_workqueue.managers import WorkJobQuerySet
from tests.keyed.test_enqueue import HOUR, MINUTE, about


def payloads(jobs):
    return [job.payload for job in jobs]


def test_enqueue_returns_the_jobs_id_when_it_is_durable_and_visible_to_a_following_claim(queue, table):
    number = queue.enqueue("mail", {"to": "ada"})
    assert table.stored() == [number]
    (job,) = queue.claim()
    assert (job.id, job.kind, job.payload, job.queue) == (number, "mail", {"to": "ada"}, queue.name)


def test_two_enqueues_of_the_same_are_two_jobs(queue):
    assert queue.enqueue("mail", 1) != queue.enqueue("mail", 1)
    assert payloads(queue.claim()) == [1, 1]


def test_a_payload_is_none_unless_said_otherwise(queue):
    queue.enqueue("mail")
    assert payloads(queue.claim()) == [None]


def test_enqueue_many_adds_a_job_for_each_payload_with_ids_in_order(queue, table):
    ids = queue.enqueue_many("mail", (number for number in range(50)))
    assert ids == sorted(set(ids))
    assert [queue.get(number).payload for number in ids] == list(range(50))
    assert table.stored() == ids


def test_kinds_and_options_that_are_an_enums_members_are_their_values(queue):
    class Kind(str, Enum):  # noqa: UP042 - of a StrEnum str() is the value
        SEND = "send"

    class Number(int, Enum):
        ONE, SEVEN = 1, 7

    @queue.handler(Kind.SEND)
    def send(job):
        return job.payload

    ids = queue.enqueue_many(Kind.SEND, [1, 2], priority=Number.SEVEN, max_attempts=Number.ONE)
    assert {(job.kind, job.priority, job.max_attempts) for job in map(queue.get, ids)} == {("send", 7, 1)}
    assert queue.cancel(queue.enqueue(Kind.SEND)) == 1
    assert [job.id for job in queue.claim(kinds=[Kind.SEND], limit=Number.ONE)] == ids[:1]
    counts = Worker([queue]).drain()
    assert counts.completed == 1


def test_enqueue_many_of_more_than_a_batch_lands_whole_and_in_order(queue, table, settings):
    settings.WORKQUEUE_BATCH_MAX = 10
    ids = queue.enqueue_many("mail", range(95))
    assert [queue.get(number).payload for number in ids] == list(range(95))
    assert ids == table.stored()


def test_enqueue_many_of_nothing_does_nothing(queue, table):
    assert queue.enqueue_many("mail", []) == []
    assert table.stored() == []


def test_enqueue_many_gives_all_its_jobs_its_options(queue, table):
    ids = queue.enqueue_many("mail", [1, 2], delay=MINUTE, priority=3, max_attempts=7)
    assert [(row.due_in, row.priority, row.max_attempts) for row in map(table.row, ids)] == [(about(60), 3, 7)] * 2


def test_ids_are_in_order_from_one_call_to_the_next_and_whatever_the_form(queue):
    ids = []
    for _ in range(3):
        ids.append(queue.enqueue("mail"))
        ids.append(queue.enqueue("mail", delay=MINUTE))
        ids += queue.enqueue_many("mail", range(3))
    assert ids == sorted(set(ids))


def test_aenqueue_and_aenqueue_many_do_the_same_without_a_thread_of_their_own(queue):
    queue.enqueue("mail")  # the batcher's thread is there now
    before = {thread.name for thread in threading.enumerate()}

    async def produce():
        return [await queue.aenqueue("mail", "a", priority=2), *await queue.aenqueue_many("mail", ["b", "c"])]

    ids = async_to_sync(produce)()
    new = {thread.name for thread in threading.enumerate()} - before
    assert len([name for name in new if not name.startswith("workqueue-")]) <= 1  # async_to_sync's
    assert [queue.get(number).payload for number in ids] == ["a", "b", "c"]
    assert queue.get(ids[0]).priority == 2
    assert async_to_sync(queue.aenqueue_many)("mail", []) == []


def test_many_threads_enqueue_at_once_and_each_gets_its_own_ids(queue, aside):
    def produce(who):
        return {queue.enqueue("mail", [who, number]): [who, number] for number in range(20)}

    made = {}
    for each in [aside(produce, who) for who in range(8)]:
        made |= each.result(30)
    assert len(made) == 160
    assert {number: queue.get(number).payload for number in made} == made


# When


def test_a_job_is_due_now_unless_said_otherwise(queue, table):
    row = table.row(queue.enqueue("mail"))
    assert row.due_in == about(0)
    assert row.available_at == row.enqueued_at


def test_delay_is_counted_from_the_enqueue(queue, table):
    number = queue.enqueue("mail", delay=MINUTE)
    assert table.row(number).due_in == about(60)
    assert queue.claim() == []
    table.age(number, seconds=61)
    assert [job.id for job in queue.claim()] == [number]


def test_run_at_is_the_time_itself(queue, table):
    at = timezone.now().replace(microsecond=123457) + HOUR
    number = queue.enqueue("mail", run_at=at)
    assert queue.get(number).available_at == at
    assert table.row(number).due_in == about(3600)
    (job,) = _due(queue, table, number)
    assert job.run_at == at - 2 * HOUR


def _due(queue, table, number):
    table.age(number, seconds=7200)
    return queue.claim()


@pytest.mark.parametrize(
    "at",
    [
        datetime(1969, 7, 20, 20, 17, tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        datetime(2020, 1, 1, tzinfo=UTC),
        datetime.now(UTC) - HOUR,
    ],
)
def test_available_at_is_never_in_the_past(queue, table, at):
    row = table.row(queue.enqueue("mail", run_at=at))
    assert row.available_at == row.enqueued_at


def test_a_negative_delay_counts_as_none(queue, table):
    row = table.row(queue.enqueue("mail", delay=-HOUR))
    assert row.available_at == row.enqueued_at


def test_a_run_at_in_another_zone_is_the_same_moment(queue, table):
    west = timezone.get_fixed_timezone(-600)
    at = datetime.now(UTC).replace(microsecond=0) + HOUR
    assert queue.get(queue.enqueue("mail", run_at=at.astimezone(west))).available_at == at


def test_the_last_run_at_there_is_comes_back_as_the_last_day_there_is(queue):
    number = queue.enqueue("mail", run_at=datetime.max.replace(tzinfo=UTC))
    assert queue.get(number).available_at == datetime(9999, 12, 31, tzinfo=UTC)


def test_the_time_a_delayed_enqueue_spends_in_memory_counts(queue, table, connect, aside, wait_until):
    holder = connect(autocommit=False)
    holder.execute("LOCK TABLE workqueue_job IN ACCESS EXCLUSIVE MODE")
    asked = time.monotonic()
    pending = aside(queue.enqueue, "mail", delay=HOUR)
    wait_until(lambda: time.monotonic() > asked + 0.5)
    holder.rollback()
    number = pending.result(timeout=10)
    spent = time.monotonic() - asked
    assert 3600 - spent - 1 <= table.row(number).due_in <= 3600 - 0.3


def test_without_use_tz_times_are_local_and_have_no_zone(queue, table, settings):
    settings.USE_TZ = False
    settings.TIME_ZONE = "America/New_York"
    at = datetime(2030, 7, 1, 12, 0)  # noqa: DTZ001 - the point of it
    number = queue.enqueue("mail", run_at=at)
    assert table.row(number).available_at == datetime(2030, 7, 1, 16, 0, tzinfo=UTC)
    table.set("available_at = now()", number)
    (job,) = queue.claim()
    assert job.run_at.tzinfo is job.enqueued_at.tzinfo is None
    assert abs(job.run_at - datetime.now(ZoneInfo("America/New_York")).replace(tzinfo=None)) < MINUTE


# Priority and attempts


@pytest.mark.parametrize("priority", [0, 7, -7, 2**31 - 1, -(2**31) + 2])
def test_a_job_has_the_priority_it_was_given(queue, priority):
    queue.enqueue("mail", priority=priority)
    assert queue.claim()[0].priority == priority


def test_max_attempts_are_five_or_the_queues_or_the_jobs(queue, make_queue, name):
    other = make_queue(name=f"{name}, another", max_attempts=2)
    assert queue.get(queue.enqueue("mail")).max_attempts == 5
    assert other.get(other.enqueue("mail")).max_attempts == 2
    assert other.get(other.enqueue("mail", max_attempts=9)).max_attempts == 9


# What is refused


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"ids": {1}}, r"payload\.ids is a set"),
        ([float("nan")], r"payload\[0\] is nan"),
        ({"raw": b"x"}, r"payload\.raw is a bytes"),
        ({"user": User(username="ada")}, r"payload\.user is a User"),
        ("x" * 2_097_152, r"payload is 2,097,154 bytes"),
        ({"a": "\x00"}, r"payload\.a holds the character NUL"),
        ({"a": "\ud800"}, r"payload\.a holds a lone surrogate"),
    ],
    ids=["set", "NaN", "bytes", "model instance", "2 MB", "NUL", "lone surrogate"],
)
def test_a_payload_that_is_not_json_is_refused_by_its_path(queue, table, payload, message):
    for enqueue in (queue.enqueue, lambda *args: queue.enqueue_many(args[0], [1, args[1]])):
        with pytest.raises(InvalidPayload, match=f"^queue {queue.name!r}: {message}"):
            enqueue("mail", payload)
    assert table.stored() == []


def test_one_bad_payload_fails_its_own_caller_only(queue, aside):
    good = [aside(queue.enqueue, "mail", number) for number in range(5)]
    bad = aside(queue.enqueue, "mail", {1})
    assert len({each.result(20) for each in good}) == 5
    assert isinstance(bad.exception(20), InvalidPayload)


def test_a_naive_run_at_is_refused_under_use_tz(queue):
    with pytest.raises(ValueError, match=r"run_at has no time zone: .* USE_TZ is on, so give an aware datetime"):
        queue.enqueue("mail", run_at=datetime(2030, 1, 1))  # noqa: DTZ001 - the point of it


def test_run_at_and_delay_together_are_refused(queue):
    with pytest.raises(ValueError, match="give run_at or delay, not both"):
        queue.enqueue("mail", run_at=timezone.now(), delay=MINUTE)


@pytest.mark.parametrize("attempts", [0, -1, 2**31])
def test_a_number_of_attempts_that_is_none_is_refused(queue, make_queue, name, attempts):
    with pytest.raises(ValueError, match="max_attempts lies between 1 and"):
        queue.enqueue("mail", max_attempts=attempts)
    with pytest.raises(ValueError, match="max_attempts lies between 1 and"):
        JobQueue(f"{name}, another", max_attempts=attempts)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"run_at": "2030-01-01"}, TypeError, "run_at is a datetime, not '2030-01-01'"),
        ({"run_at": timezone.now().date()}, TypeError, "run_at is a datetime"),
        ({"delay": 60}, TypeError, "delay is a timedelta, not 60"),
        ({"delay": timedelta.max}, ValueError, "delay is at most a thousand years"),
        ({"priority": 1.5}, TypeError, "priority"),
        ({"priority": 2**31}, ValueError, "priority"),
        ({"priority": True}, TypeError, "priority"),
        ({"max_attempts": 2.0}, TypeError, "max_attempts is a whole number, not 2.0"),
        ({"max_attempts": True}, TypeError, "max_attempts is a whole number, not True"),
        ({"timeout": 0}, ValueError, "timeout is a positive number"),
        ({"timeout": timedelta(seconds=3)}, TypeError, "timeout is a number of seconds, not datetime.timedelta"),
    ],
)
def test_options_of_the_wrong_kind_are_refused(queue, table, options, error, message):
    for call in (queue.enqueue, async_to_sync(queue.aenqueue)):
        with pytest.raises(error, match=message):
            call("mail", **options)
    for call in (queue.enqueue_many, async_to_sync(queue.aenqueue_many)):
        with pytest.raises(error, match=message):
            call("mail", [1], **options)
    assert table.stored() == []


@pytest.mark.parametrize("payloads", ["abc", b"abc", bytearray(b"abc"), {"to": "x"}])
def test_a_single_payload_is_not_taken_for_a_collection_of_them(queue, table, payloads):
    for call in (queue.enqueue_many, async_to_sync(queue.aenqueue_many)):
        with pytest.raises(
            TypeError, match=r"payloads is a list .*, not a \w+\. .* single payload, put it into a list"
        ):
            call("welcome", payloads)
    assert table.stored() == []
    queue.enqueue_many("welcome", iter([payloads] if isinstance(payloads, (str, dict)) else [1]))
    assert len(table.stored()) == 1


def test_a_single_kind_is_not_taken_for_a_collection_of_them(queue):
    queue.enqueue("m")
    for call in (queue.claim, async_to_sync(queue.aclaim)):
        with pytest.raises(TypeError, match=r"kinds is a list .*, not a str"):
            call(kinds="m")


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (None, TypeError, "a job's kind is a str, not None"),
        (b"mail", TypeError, "a job's kind is a str, not b'mail'"),
        ("", ValueError, "a job's kind has 1 to 512 bytes; '' has 0"),
        ("ü" * 257, ValueError, "a job's kind has 1 to 512 bytes; 'ü+' has 514"),
        ("two\nlines", ValueError, "a job's kind holds no control characters"),
        ("nul\x00", ValueError, "a job's kind holds no control characters"),
        ("\ud800", ValueError, "a job's kind holds no control characters"),
    ],
)
def test_a_kind_that_is_none_is_refused_wherever_it_is_named(queue, kind, error, message):
    for call in (
        lambda: queue.enqueue(kind),
        lambda: queue.enqueue_many(kind, [1]),
        lambda: queue.claim(kinds=[kind]),
        lambda: queue.handler(kind),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_kind_may_be_any_other_text(queue):
    for kind in ("ü" * 256, "app.tasks.send", "it's {Q} 100% \\ \"", "☃ 🦆", " "):
        queue.enqueue(kind)
        assert queue.claim(kinds=[kind])[0].kind == kind


# Queues


@pytest.mark.parametrize("called", ["", "a\nb", "x" * 129, "\ud800"])
def test_a_name_that_is_none_is_refused(called):
    with pytest.raises(ValueError, match="a queue's name"):
        JobQueue(called)


def test_the_queue_is_called_default_unless_said_otherwise():
    assert JobQueue().name == "default"


@pytest.mark.parametrize(("option", "value"), [("max_attempts", 3), ("retention", HOUR), ("dead_retention", HOUR)])
def test_two_objects_of_one_name_must_agree(queue, name, option, value):
    with pytest.raises(ValueError, match=f"has a queue '.*' already, and it differs: {option} is"):
        JobQueue(name, **{option: value})
    assert JobQueue(name).source is queue.source


def test_keyed_and_job_queues_do_not_share_a_name(queue, name):
    with pytest.raises(ValueError, match="differs"):
        Queue(name)


@pytest.mark.parametrize("option", ["retention", "dead_retention"])
def test_a_negative_retention_is_refused(name, option):
    with pytest.raises(ValueError, match=f"{option} is not negative"):
        JobQueue(name, **{option: -MINUTE})


@pytest.mark.parametrize("called", ["it's", "back\\slash", "100%", "%s %(ids)s", "{Q} {}", "$1 $$", "ünï ☃", "-- x"])
def test_a_queue_works_whatever_it_is_called(make_queue, called):
    queue = make_queue(name=called)
    ids = queue.enqueue_many("mail", range(6))
    queue.enqueue("later", delay=HOUR)
    done, failed, dead, gone, kept, _ = jobs = queue.claim()
    assert [job.id for job in jobs] == ids
    assert queue.complete(done) == 1
    assert queue.fail(failed, ValueError(), retry_in=HOUR) == "pending"
    table = queue.source.table()
    assert table.start(called, [dead.id], [dead._fence.token], "w")
    assert queue.cancel(gone.id) == queue.retry(gone.id) == 1
    assert queue.extend(kept, gone, lease=MINUTE) == [kept]
    queue.pause()
    assert queue.is_paused()
    queue.resume()
    stats = queue.stats()
    assert (stats.ready, stats.scheduled, stats.leased, stats.completed) == (1, 2, 3, 1)
    assert queue.stats(exact=False).leased == 3
    assert queue.prune(timedelta(0)) == 1


# Closing, timeouts, forks


def test_a_closed_queue_refuses_and_another_object_goes_on(queue, name):
    queue.enqueue("mail")
    queue.close()
    queue.close()
    with pytest.raises(QueueClosed, match="Nothing was enqueued"):
        queue.enqueue("mail")
    with pytest.raises(QueueClosed):
        async_to_sync(queue.aenqueue)("mail")
    assert JobQueue(name).enqueue("mail")


def test_an_enqueue_that_is_not_durable_in_time_says_that_it_is_likely_to_land(queue, table, connect, wait_until):
    holder = connect(autocommit=False)
    holder.execute("LOCK TABLE workqueue_job IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(EnqueueTimeout, match="likely to land"):
        queue.enqueue("mail", timeout=0.05)
    holder.rollback()
    wait_until(table.stored)
    assert len(queue.claim()) == 1


def test_an_enqueue_waits_for_a_lock_on_the_table_up_to_its_timeout_while_keys_go_on(
    queue, table, connect, aside, wait_until
):
    holder = connect(autocommit=False)
    holder.execute("LOCK TABLE workqueue_job IN ACCESS EXCLUSIVE MODE")
    waiting = aside(queue.enqueue, "mail", 1, timeout=30)
    late = aside(queue.enqueue, "mail", 2, timeout=1)
    tiles = Queue(f"{queue.name} tiles")
    began = time.monotonic()
    while time.monotonic() < began + 1.5:  # many times as long as any lock is waited for at once
        tiles.enqueue("a")
    with pytest.raises(EnqueueTimeout, match="lock timeout"):
        late.result(timeout=10)
    assert not waiting.done()
    holder.rollback()
    number = waiting.result(timeout=10)
    wait_until(lambda: len(table.stored()) == 2)  # the one that was given up lands all the same
    assert table.stored()[0] == number
    assert payloads(queue.claim()) == [1, 2]


def test_close_answers_whoever_still_waits_when_its_time_is_over(queue, connect, aside, wait_until, table):
    holder = connect(autocommit=False)
    holder.execute("LOCK TABLE workqueue_job IN ACCESS EXCLUSIVE MODE")
    waiting = aside(queue.enqueue, "mail", timeout=60)
    wait_until(lambda: holder.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0])
    queue.close(0.1)
    with pytest.raises(EnqueueTimeout, match="closed before the call was written"):
        waiting.result(timeout=10)
    holder.rollback()


@pytest.fixture
def largest(monkeypatch):
    """The characters that each statement sends, of those that send any number of texts."""
    sizes = []
    send = WorkJobQuerySet._send

    def noted(table, statement, queue, params):
        sizes.append(sum(len(text or "") for name in ("payloads", "results") for text in params.get(name, ())))
        return send(table, statement, queue, params)

    monkeypatch.setattr(WorkJobQuerySet, "_send", noted)
    return lambda: max(sizes)


def test_no_statement_has_more_than_some_mb_however_large_payloads_and_results_are(queue, largest):
    large = ["x" * 500_000] * 30
    ids = queue.enqueue_many("mail", large)
    with transaction.atomic():
        ids += queue.enqueue_many("mail", large)
    assert [len(queue.get(number).payload) for number in ids] == [500_000] * 60
    assert queue.complete(*queue.claim(limit=30), result=large[0]) == 30

    @queue.handler("mail")
    def mail(job):
        return job.payload

    assert Worker([queue]).drain().completed == 30
    assert largest() < 5_000_000


def test_ids_after_a_fork_are_the_childs_own(queue, table):
    queue.enqueue("mail", "of the parent")  # leaves ids in stock
    connections.close_all()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ids = queue.enqueue_many("mail", ["of the child"] * 5)
            os.write(writing, repr(ids).encode())
            queue.close(10)
            code = 0
        finally:
            os._exit(code)
    ids = queue.enqueue_many("mail", ["of the parent"] * 5)
    assert os.waitpid(pid, 0)[1] == 0
    os.close(writing)
    with os.fdopen(reading) as told:
        theirs = eval(told.read())
    assert len({*ids, *theirs}) == 10
    assert {queue.get(number).payload for number in ids} == {"of the parent"}
    assert {queue.get(number).payload for number in theirs} == {"of the child"}


# Jobs


def test_a_job_is_a_value_that_can_be_a_member_of_a_set(queue):
    queue.enqueue("mail", {"a": [1]})
    (job,) = queue.claim()
    assert {job: 1}[job] == 1
    assert repr(job).startswith("Job(id=")
    assert "fence" not in repr(job)
    assert isinstance(job, Job)
    with pytest.raises(AttributeError):
        job.payload = {}


def test_a_job_tells_everything_about_itself(queue, table):
    number = queue.enqueue("mail", {"to": "ada"}, priority=4, max_attempts=3)
    queue.fail(queue.claim()[0], ValueError("no route"), retry_in=timedelta(0))
    (job,) = queue.claim()
    row = table.row(number)
    assert (job.id, job.queue, job.kind, job.payload) == (number, queue.name, "mail", {"to": "ada"})
    assert (job.attempts, job.max_attempts, job.priority) == (2, 3, 4)
    assert (job.run_at, job.enqueued_at) == (row.available_at, row.enqueued_at)
    assert (job.last_error, job.reclaimed, job.cancelled) == ("ValueError: no route", False, False)
