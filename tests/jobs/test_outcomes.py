"""How a run ends: completed with a result, failed and tried again, dead; and who may still say so."""

import inspect
import json
from datetime import datetime, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from django_workqueue import InvalidPayload, JobStatus, PermanentError, Retry, exponential
from django_workqueue.engine import worker_id
from django_workqueue.managers.jobs import Settling
from django_workqueue.models import WorkJob
from tests.keyed.test_enqueue import HOUR, MINUTE, about

NOW = timedelta(0)


@pytest.fixture
def one(queue):
    """One claimed job."""
    queue.enqueue("mail")
    return queue.claim()[0]


def raised(error, cause=None):
    """The error as it is after it was raised."""
    try:
        raise error from cause
    except BaseException as caught:
        return caught


# Completing


@pytest.fixture
def unmarked(queue, table):
    """Three jobs of one claim that marked no start, of which the second is lost; and what each says it ran, in µs."""
    ids = queue.enqueue_many("mail", range(3))
    WorkJob.objects.claim(
        queue.name,
        3,
        HOUR,
        token=7,
        intervals=[(-(2**31) + 1, 0, 0, 2**31 - 1)],
        kinds=None,
        mark=False,
        worker="w",
        lapsed=0,
    )
    WorkJob.objects.filter(id=ids[1]).update(lease_token=8)
    return Settling(ids, [7, 7, 7], [1_000_000, 2_000_000, 3_000_000], "w")


@pytest.mark.parametrize("results", [[None] * 3, ["1", "2", "3"]])
def test_a_start_that_was_not_marked_is_noted_of_each_job_as_it_completes(queue, unmarked, results):
    first, lost, last = unmarked.ids
    assert WorkJob.objects.complete(queue.name, unmarked, results, keep=True) == 2
    rows = WorkJob.objects.in_bulk(unmarked.ids)
    assert [(rows[number].finished_at - rows[number].started_at).total_seconds() for number in (first, last)] == [1, 3]
    assert [rows[number].worker_ids for number in unmarked.ids] == [["w"], [], ["w"]]
    assert rows[lost].started_at is None


@pytest.mark.parametrize("marked", [False, True])
def test_the_start_of_an_attempt_that_failed_is_in_its_error(queue, unmarked, marked):
    first, _, last = unmarked.ids
    if marked:
        WorkJob.objects.start(queue.name, [first, last], [7, 7], "w")
    before = WorkJob.objects.in_bulk(unmarked.ids)
    WorkJob.objects.fail(queue.name, unmarked, delays=[0] * 3, errors=["{}"] * 3, finals=[True] * 3, uncounts=[0] * 3)
    for number, seconds in ((first, 1), (last, 3)):
        row = WorkJob.objects.get(id=number)
        (error,) = row.errors
        assert datetime.fromisoformat(error["started"]) == row.started_at
        assert datetime.fromisoformat(error["at"]) == row.finished_at
        expected = before[number].started_at if marked else row.finished_at - timedelta(seconds=seconds)
        assert row.started_at == expected
        assert row.worker_ids == ["w"]


def test_a_completed_job_is_kept_with_its_result(queue, table, one):
    assert queue.complete(one, result={"sent": [1, None]}) == 1
    row = queue.get(one.id)
    assert (row.status, row.result, row.attempts) == (JobStatus.COMPLETED, {"sent": [1, None]}, 1)
    assert table.row(one.id).ended_ago == about(0)
    assert queue.claim() == []


def test_a_result_is_none_unless_said_otherwise(queue, one):
    queue.complete(one)
    assert queue.get(one.id).result is None


def test_many_are_completed_at_once_all_with_the_same_result(queue):
    queue.enqueue_many("mail", range(1200))
    jobs = [*queue.claim(), *queue.claim(), *queue.claim()]
    assert queue.complete(*jobs, result="done") == 1200
    assert {queue.get(job.id).result for job in jobs[::400]} == {"done"}
    assert queue.stats().completed == 1200


def test_the_twins_for_coroutines_do_the_same(queue):
    async def main():
        first, second = await queue.aenqueue_many("mail", [1, 2])
        one, other = await queue.aclaim()
        return (
            await queue.acomplete(one, result=5),
            await queue.afail(other, ValueError("no"), retry_in=HOUR),
            await queue.acancel(second),
            await queue.aretry(second),
            (await queue.aget(first)).result,
            await queue.aprune(NOW),
            (await queue.astats()).ready,
        )

    assert async_to_sync(main)() == (1, JobStatus.PENDING, 1, 1, 5, 1, 1)


def test_every_method_that_touches_the_database_has_a_twin(queue):
    sync = {name for name, _ in inspect.getmembers(type(queue), inspect.isfunction) if not name.startswith("_")}
    plain = {name for name in sync if f"a{name}" in sync}
    asynchronous = {f"a{name}" for name in plain} | {"await_wake"}
    assert sync == plain | asynchronous | {"handler", "wait"}
    assert all(inspect.iscoroutinefunction(getattr(queue, name)) for name in asynchronous)
    for name in plain:
        ours, theirs = (inspect.signature(getattr(queue, each)).parameters for each in (name, f"a{name}"))
        assert list(ours.values()) == list(theirs.values()), name


def test_what_is_completed_already_unknown_or_named_twice_is_not_counted(queue, one):
    assert queue.complete(one, one) == 1
    assert queue.complete(one) == 0
    assert queue.complete() == 0


@pytest.mark.parametrize("result", [{1}, float("nan"), b"x", object(), "\x00", "x" * 2_000_000])
def test_a_result_that_is_not_json_is_refused_and_the_job_is_still_held(queue, table, one, result):
    with pytest.raises(InvalidPayload, match=f"^queue {queue.name!r}: result "):
        queue.complete(one, result=result)
    assert table.state(one.id) == "leased"


# Failing


def test_a_failed_job_is_pending_again_after_the_time_it_was_given(queue, table, one):
    assert queue.fail(one, ValueError("no"), retry_in=timedelta(minutes=3)) is JobStatus.PENDING
    assert queue.get(one.id).status == JobStatus.PENDING
    assert table.row(one.id).due_in == about(180)
    assert queue.claim() == []


def test_at_its_last_attempt_a_job_is_dead_and_stays_for_inspection(make_queue, table):
    queue = make_queue(max_attempts=3, retention=NOW)
    number = queue.enqueue("mail", {"to": "ada"})
    for left in (2, 1, 0):
        (job,) = queue.claim()
        status = queue.fail(job, ValueError(left), retry_in=NOW)
        assert status is (JobStatus.PENDING if left else JobStatus.DEAD)
    row = queue.get(number)
    assert (row.status, row.attempts, row.payload, len(row.errors)) == (JobStatus.DEAD, 3, {"to": "ada"}, 3)
    assert table.row(number).ended_ago == about(0)
    assert queue.claim() == []
    assert queue.stats().stalled == 1


@pytest.mark.parametrize(
    "error",
    [
        PermanentError("never"),
        raised(ValueError("no"), PermanentError("never")),
        raised(KeyError(), raised(ValueError("no"), PermanentError("never"))),
        type("Ours", (PermanentError, ValueError), {})("never"),
    ],
    ids=["itself", "chained", "chained twice", "a child"],
)
def test_a_permanent_error_makes_a_job_dead_at_its_first_attempt(queue, one, error):
    assert queue.fail(one, error, retry_in=MINUTE) is JobStatus.DEAD
    assert queue.get(one.id).attempts == 1


def test_an_error_that_merely_came_while_a_permanent_one_was_handled_is_none(queue, one):
    def handle():
        try:
            raise PermanentError
        except PermanentError:
            raise ValueError("no")  # noqa: B904 - the point of it

    with pytest.raises(ValueError, match="no") as caught:
        handle()
    assert queue.fail(one, caught.value) is JobStatus.PENDING


def test_a_chain_of_causes_that_bites_its_tail_ends(queue, one):
    error = ValueError()
    error.__cause__ = KeyError()
    error.__cause__.__cause__ = error
    assert queue.fail(one, error) is JobStatus.PENDING


def test_retry_snoozes_and_counts_no_attempt_not_even_the_last(make_queue, table):
    queue = make_queue(max_attempts=1)
    number = queue.enqueue("mail")
    for _ in range(5):
        (job,) = queue.claim()
        assert job.attempts == 1
        assert queue.fail(job, Retry(MINUTE)) is JobStatus.PENDING
        row = table.row(number)
        assert (row.attempts, row.due_in, row.errors, row.worker_ids) == (0, about(60), [], [])
        table.age(number, seconds=120)
    (job,) = queue.claim()
    assert queue.fail(job, Retry(), retry_in=HOUR) is JobStatus.PENDING
    assert table.row(number).due_in == about(3600)


@pytest.mark.parametrize("delay", [5, None, "1"])
def test_retry_takes_a_timedelta(delay):
    with pytest.raises(TypeError, match="Retry"):
        Retry(delay)


def test_a_negative_retry_in_counts_as_none(queue, table, one):
    queue.fail(one, ValueError(), retry_in=-HOUR)
    assert table.row(one.id).due_in == about(0)
    assert len(queue.claim()) == 1


@pytest.mark.parametrize(
    ("retry_in", "error"), [(5, TypeError), (timedelta.max, ValueError), ("1", TypeError)], ids=str
)
def test_a_retry_in_that_is_none_raises(queue, table, one, retry_in, error):
    with pytest.raises(error, match="delay is"):
        queue.fail(one, ValueError(), retry_in=retry_in)
    assert table.state(one.id) == "leased"


# Backoff


def due_after(queue, table, attempts):
    """How long after its so-manieth attempt a job that failed is due."""
    number = queue.enqueue("mail", max_attempts=99)
    table.set(f"attempts = {attempts - 1}", number)
    queue.fail(queue.claim()[0], ValueError())
    return table.row(number).due_in


@pytest.mark.parametrize("handled", [True, False])
@pytest.mark.parametrize(("attempts", "seconds"), [(1, 2), (2, 4), (3, 8), (7, 128), (8, 256), (9, 256), (50, 256)])
def test_a_failed_job_waits_2_4_8_and_at_most_256_seconds_and_a_quarter(queue, table, handled, attempts, seconds):
    if handled:
        queue.handler("mail")(lambda job: None)
    due_in = due_after(queue, table, attempts)
    assert seconds - 2 <= due_in <= seconds * 1.25


def test_a_handlers_own_backoff_says_how_long(queue, table):
    asked = []

    def backoff(attempts):
        asked.append(attempts)
        return timedelta(minutes=attempts)

    queue.handler("mail", backoff=backoff)(lambda job: None)
    assert due_after(queue, table, 1) == about(60)
    assert due_after(queue, table, 4) == about(240)
    assert asked == [1, 4]


def test_exponential_doubles_from_its_base_to_its_ceiling_with_jitter_on_top():
    plain = exponential(timedelta(seconds=1), timedelta(seconds=10), jitter=0)
    assert [plain(attempts).total_seconds() for attempts in (0, 1, 2, 3, 4, 5, 6, 1000)] == [1, 1, 2, 4, 8, 10, 10, 10]
    for attempts, least in ((1, 2), (2, 4), (8, 256), (100, 256)):
        waits = [exponential()(attempts).total_seconds() for _ in range(200)]
        assert least <= min(waits) < max(waits) <= least * 1.25


@pytest.mark.parametrize(
    "arguments", [{"base": NOW}, {"base": -MINUTE}, {"ceiling": timedelta(seconds=1)}, {"jitter": -0.1}], ids=str
)
def test_exponential_refuses_what_makes_no_sense(arguments):
    with pytest.raises(ValueError, match="exponential"):
        exponential(**arguments)


@pytest.mark.parametrize("backoff", [None, 5, timedelta(seconds=5)])
def test_a_backoff_that_cannot_be_called_is_refused(queue, backoff):
    with pytest.raises(TypeError, match="backoff is a callable"):
        queue.handler("mail", backoff=backoff)


# The history of errors


def test_every_attempts_error_is_kept_with_time_worker_path_message_and_traceback(queue, one):
    before = timezone.now()
    queue.fail(one, raised(ValueError("no route"), KeyError("cause")), retry_in=NOW)
    (job,) = queue.claim()
    queue.fail(job, raised(LookupError("gone")), retry_in=NOW)
    first, second = queue.get(one.id).errors
    assert (first["type"], first["message"], first["attempt"]) == ("builtins.ValueError", "no route", 1)
    assert (second["type"], second["message"], second["attempt"]) == ("builtins.LookupError", "gone", 2)
    assert first["worker"] == second["worker"] == worker_id()
    assert abs(datetime.fromisoformat(first["at"]) - before) < MINUTE
    assert "KeyError: 'cause'" in first["traceback"]
    assert "in raised\n    raise error from cause\n" in first["traceback"]
    assert first["traceback"].endswith("ValueError: no route\n")


def test_the_newest_20_errors_are_kept(queue, table):
    number = queue.enqueue("mail", max_attempts=50)
    for attempt in range(1, 31):
        (job,) = queue.claim()
        queue.fail(job, ValueError(attempt), retry_in=NOW)
        kept = queue.get(number).errors
        expected = range(max(1, attempt - 19), attempt + 1)
        assert [error["attempt"] for error in kept] == list(expected)
        assert [error["message"] for error in kept] == [str(each) for each in expected]


def test_the_next_delivery_tells_the_last_error(queue, one):
    queue.fail(one, raised(KeyError("to")), retry_in=NOW)
    (job,) = queue.claim()
    assert job.last_error == queue.get(job.id).last_error == "KeyError: 'to'"


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


HOSTILE = {
    "NUL": ValueError("a\x00b"),
    "lone surrogate": ValueError("\ud800"),
    "no words": Mute(),
    "bytes": ValueError(b"\xff"),
    "quotes": ValueError("it's {Q} 100% %s \\ \" \n"),
    "of no args": ValueError(),
    "very long": ValueError("x" * 100_000),
    "a path that is no text": type("Odd", (Exception,), {"__module__": "a\ud800\x00"})("odd"),
    "SystemExit": SystemExit(3),
    "a group": ExceptionGroup("many", [ValueError(1), KeyError(2)]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_any_error_can_be_kept(queue, one, what):
    assert queue.fail(one, raised(HOSTILE[what]), retry_in=NOW) is JobStatus.PENDING
    (error,) = queue.get(one.id).errors
    assert len(error["message"]) <= 2_000
    assert len(error["traceback"]) <= 20_000
    assert json.dumps(error)
    assert len(queue.claim()) == 1


def test_of_a_long_traceback_the_end_is_kept(queue, one):
    def deep(levels):
        if not levels:
            raise ValueError("at the bottom " + "x" * 5000)
        deep(levels - 1) if levels % 2 else deeper(levels - 1)

    def deeper(levels):
        deep(levels)

    with pytest.raises(ValueError, match="at the bottom") as caught:
        deep(200)
    queue.fail(one, caught.value)
    (error,) = queue.get(one.id).errors
    assert error["traceback"].startswith("…")
    assert error["traceback"].endswith("xxx\n")
    assert error["message"].startswith("at the bottom")


# The fence: a straggler that finishes after its job was run again


ENDS = {
    "complete": lambda queue, job: queue.complete(job, result="late"),
    "fail": lambda queue, job: queue.fail(job, ValueError("late"), retry_in=NOW),
    "fail for good": lambda queue, job: queue.fail(job, PermanentError("late")),
    "retry": lambda queue, job: queue.fail(job, Retry(HOUR)),
    "extend": lambda queue, job: queue.extend(job, lease=HOUR),
}
NOTHING = {"complete": 0, "fail": None, "fail for good": None, "retry": None, "extend": []}


@pytest.fixture(params=["running again", "completed", "failed", "dead", "cancelled", "retried by hand", "pruned"])
def straggler(request, make_queue, table):
    """A job claimed under a lease that lapsed, and what became of the job under the next one."""
    queue = make_queue(max_attempts=2 if request.param == "dead" else 5)
    number = queue.enqueue("mail")
    (late,) = queue.claim()
    table.lapse(number)
    (job,) = queue.claim()
    if request.param in ("completed", "pruned"):
        queue.complete(job, result="in time")
    elif request.param in ("failed", "dead"):
        queue.fail(job, ValueError("in time"), retry_in=HOUR)
    elif request.param != "running again":
        queue.cancel(number)
    if request.param == "retried by hand":
        queue.retry(number)
    if request.param == "pruned":
        queue.prune(NOW)
    return queue, late


@pytest.mark.parametrize("end", ENDS)
def test_a_straggler_that_finishes_after_its_job_was_run_again_changes_nothing(straggler, table, end):
    queue, late = straggler
    before = table.row(late.id)
    assert ENDS[end](queue, late) == NOTHING[end]
    after = table.row(late.id)
    if before is not None:
        for moving in ("due_in", "lease_left", "asked_ago", "ended_ago"):
            delattr(before, moving)
            delattr(after, moving)
    assert after == before


@pytest.mark.parametrize("end", ENDS)
def test_a_straggler_whose_job_nobody_took_up_is_in_time(queue, table, one, end):
    table.lapse(one.id)
    assert ENDS[end](queue, one) != NOTHING[end]
    assert table.state(one.id) == {"complete": "completed", "fail for good": "dead", "extend": "leased"}.get(
        end, "waiting"
    )


def test_a_straggler_and_its_successor_settle_together_and_only_the_successor_counts(queue, table):
    number = queue.enqueue("mail")
    (late,) = queue.claim()
    table.lapse(number)
    (job,) = queue.claim()
    assert queue.complete(late, job, result="done") == 1
    assert queue.get(number).status == JobStatus.COMPLETED
