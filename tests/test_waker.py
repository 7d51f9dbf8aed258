"""Sending wakes: few, after the commit, from the group commit's thread, and the last one always."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pytest
from django.db import connection as djangos
from django.db import transaction
from django.test.utils import CaptureQueriesContext

from django_workqueue import JobQueue, Queue, notify
from django_workqueue.batcher import Batcher, Disposition, process
from django_workqueue.database import Connection
from django_workqueue.notify import Waker, waker
from django_workqueue.notify.waker import INTERVAL
from tests.conftest import PROJECT, environment
from tests.interleave import aside, wait_until

pytestmark = pytest.mark.django_db

QUEUE = "tiles"


class Watched(Connection):
    """Notes what it was given to execute, when, and on which thread."""

    def __init__(self) -> None:
        super().__init__("default", application="django_workqueue enqueue")
        self.executed: list[tuple[list[str], float, str]] = []

    def execute(self, statement: str, params: Mapping[str, Any] | None = None, *, prepare: bool = True) -> Any:
        if params is not None and "queues" in params:
            self.executed.append((list(params["queues"]), time.monotonic(), threading.current_thread().name))
        return super().execute(statement, params, prepare=prepare)


class Commits:
    """A group commit that writes nothing, and wakes after each batch: a lane, with its batcher."""

    name = QUEUE

    def __init__(self) -> None:
        self.connection = Watched()
        self.batcher = Batcher(
            name="test-commits",
            batch_max=lambda: 1000,
            classify=lambda _: Disposition.REFUSE,
            disconnect=self.connection.close,
            forget=self.connection.forget,
            idle_after=lambda: 60.0,
        )
        self.waker = Waker("default", self.connection, self.batcher.submit, self.batcher.post)
        self.queues: list[str] = [QUEUE]
        self.woken_at = 0.0
        self.woken = threading.Semaphore(0)

    def commit(self) -> None:
        """Return when a batch was written and, right after it, its wake asked for."""
        self.batcher.submit(self, [1])
        assert self.woken.acquire(timeout=10)

    def write(self, entries: Sequence[int]) -> None:
        pass

    def after(self, entries: Sequence[int]) -> None:
        for queue in self.queues:
            self.woken_at = time.monotonic()
            self.waker.wake(queue)
        self.woken.release()

    def sent(self) -> list[str]:
        """The queues woken so far, in order, once nothing is left to send."""
        # What is being sent is not due, and is due again if that fails: so look before and after it is done.
        wait_until(lambda: not self.waker._due and self.batcher.flush(10) and not self.waker._due, 30)
        return [queue for queues, _, _ in self.connection.executed for queue in queues]


@pytest.fixture
def commits() -> Iterator[Commits]:
    made = Commits()
    yield made
    made.batcher.close(10)


@pytest.fixture
def heard(second: psycopg.Connection[Any], connect: Any) -> Any:
    """`heard()`: what has come on the wakeups' channel since it was last asked, in order."""
    notes: list[str] = []
    second.add_notify_handler(lambda note: notes.append(note.payload))
    second.execute("LISTEN workqueue")
    sender = connect()

    def until_now() -> list[str]:
        sender.execute("NOTIFY workqueue, '--now--'")
        wait_until(lambda: second.execute("SELECT 1").rowcount and "--now--" in notes)
        at = notes.index("--now--")
        until = notes[:at]
        del notes[: at + 1]
        return until

    return until_now


def test_the_first_wake_is_sent_at_once_and_by_the_writing_thread(commits: Commits, heard: Any) -> None:
    commits.commit()
    assert [thread for _, _, thread in commits.connection.executed] == ["test-commits"]
    assert heard() == [QUEUE]


def test_a_burst_of_batches_sends_few_wakes_the_last_of_them_after_the_last_batch(commits: Commits, heard: Any) -> None:
    for _ in range(10):
        started = time.monotonic()
        before = len(commits.connection.executed)
        for _ in range(50):
            commits.commit()
        sent = commits.sent()[before:]
        elapsed = commits.connection.executed[-1][1] - started
        assert 1 <= len(sent) <= elapsed / waker.INTERVAL + 2
        assert commits.connection.executed[-1][1] >= commits.woken_at
    assert heard() == commits.sent()


def test_wakes_of_many_queues_that_were_put_off_are_sent_in_one_statement(
    commits: Commits, heard: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(waker, "INTERVAL", 0.3)
    commits.queues = [f"queue {number}" for number in range(20)]
    commits.commit()
    commits.commit()
    commits.sent()
    assert sorted(commits.connection.executed[-1][0]) == sorted(commits.queues)
    assert len(commits.connection.executed) == 21
    assert sorted(heard()) == sorted(commits.queues * 2)


def test_a_wake_from_another_thread_is_sent_by_the_writing_thread_without_waiting(commits: Commits, heard: Any) -> None:
    commits.waker.wake_later(QUEUE)
    assert commits.sent() == [QUEUE]
    assert commits.connection.executed[0][2] == "test-commits"
    commits.waker.wake_later(QUEUE)
    assert commits.sent() == [QUEUE, QUEUE]
    assert heard() == [QUEUE, QUEUE]


def test_wakes_from_many_threads_are_never_lost(commits: Commits) -> None:
    asked: list[float] = []

    def ask() -> None:
        for _ in range(100):
            asked.append(time.monotonic())
            commits.waker.wake_later(QUEUE)

    for done in [aside(ask) for _ in range(4)]:
        done.result(30)
    commits.sent()
    assert commits.connection.executed[-1][1] >= max(asked)


@pytest.mark.parametrize("interval", [0.0, 0.3], ids=["at once", "put off"])
def test_a_lost_connection_delays_a_wake_and_does_not_lose_it(
    commits: Commits, heard: Any, connect: Any, monkeypatch: Any, interval: float
) -> None:
    monkeypatch.setattr(waker, "INTERVAL", interval)
    commits.commit()
    pid = commits.connection.raw.info.backend_pid
    assert connect().execute("SELECT pg_terminate_backend(%s, 30000)", [pid]).fetchone() == (True,)
    commits.commit()
    commits.sent()
    assert heard() == [QUEUE, QUEUE]


def test_with_notify_off_nothing_is_sent_and_this_process_is_woken(commits: Commits, settings: Any) -> None:
    settings.WORKQUEUE_NOTIFY = False
    waiting = notify.occasional("default", QUEUE)
    commits.commit()
    assert waiting.wait(0)
    commits.waker.wake_later(QUEUE)
    assert waiting.wait(0)
    assert commits.sent() == []
    assert not commits.connection.is_open


def test_without_threads_every_wake_is_sent_at_once(commits: Commits, monkeypatch: Any) -> None:
    monkeypatch.setattr(waker, "threads_available", lambda: False)
    commits.commit()
    commits.commit()
    assert len(commits.connection.executed) == 2
    assert commits.waker._timer is None


def test_without_threads_a_wake_from_another_thread_is_sent_too(commits: Commits, monkeypatch: Any) -> None:
    monkeypatch.setattr(waker, "threads_available", lambda: False)
    monkeypatch.setattr(process, "threads_available", lambda: False)
    commits.waker.wake_later(QUEUE)
    assert [queues for queues, *_ in commits.connection.executed] == [[QUEUE]]


def test_flush_sends_what_was_put_off(commits: Commits, monkeypatch: Any) -> None:
    monkeypatch.setattr(waker, "INTERVAL", 60)
    commits.commit()
    commits.commit()
    assert len(commits.connection.executed) == 1
    commits.waker.flush()
    assert commits.sent() == [QUEUE, QUEUE]


def test_the_timer_ends_when_it_has_nothing_to_do(commits: Commits, monkeypatch: Any) -> None:
    monkeypatch.setattr(waker, "TIMER_IDLE", 0.05)
    for _ in range(3):
        commits.commit()
        commits.commit()
        commits.sent()
        wait_until(lambda: commits.waker._timer is None)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_leaves_its_parents_wakes_to_the_parent(commits: Commits, monkeypatch: Any) -> None:
    monkeypatch.setattr(waker, "INTERVAL", 60)
    commits.commit()
    commits.commit()
    child = os.fork()
    if child == 0:
        os._exit(len(commits.waker._due))
    assert os.waitpid(child, 0)[1] == 0
    assert list(commits.waker._due) == [QUEUE]


@pytest.mark.django_db(transaction=True)
def test_a_process_that_ends_sends_its_last_wake(heard: Any) -> None:
    script = """
import django; django.setup()
from django_workqueue import Queue
from django_workqueue.lanes import commits
from django_workqueue.notify import waker
from tests.interleave import wait_until
waker.INTERVAL = 60
queue = Queue("tiles")
queue.enqueue("a")
queue.enqueue("b")
wait_until(lambda: commits("default").waker._due)
"""
    subprocess.run([sys.executable, "-c", script], env=os.environ | environment(), cwd=PROJECT, check=True, timeout=60)
    assert heard() == [QUEUE, QUEUE]


@pytest.mark.django_db(transaction=True)
def test_a_committed_transaction_wakes_after_its_commit_and_sends_nothing_itself(heard: Any) -> None:
    queue = Queue("in a transaction")
    with CaptureQueriesContext(djangos) as captured, transaction.atomic():
        queue.enqueue("a", "b")
        queue.enqueue("c")
        assert heard() == []
    assert wait_until(heard) == ["in a transaction"]
    assert "notify" not in json.dumps(captured.captured_queries).lower()


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_transaction_wakes_nobody(heard: Any) -> None:
    queue = Queue("rolled back")
    with transaction.atomic():
        queue.enqueue("a")
        transaction.set_rollback(True)
    with transaction.atomic():
        with transaction.atomic():
            queue.enqueue("b")
            transaction.set_rollback(True)
        Queue("kept").enqueue("c")
    assert wait_until(heard) == ["kept"]


# Along with the commit


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that the group commits of the process send by themselves."""
    statements: list[str] = []
    execute = Connection.execute

    def noted(self: Connection, statement: str, *rest: Any, **how: Any) -> Any:
        if self.application == "django_workqueue enqueue":
            statements.append(statement)
        return execute(self, statement, *rest, **how)

    monkeypatch.setattr(Connection, "execute", noted)
    return statements


@pytest.fixture(params=[Queue, JobQueue])
def queue(request: Any, sent: list[str], heard: Any) -> Any:
    """A queue of either kind that is known to the table of queues, and whose last wake has been heard."""
    queue = request.param(f"along {request.param.__name__}")
    queue.enqueue("before")
    waker = queue.source.commits.waker
    wait_until(heard)
    wait_until(lambda: not waker._due and waker._sent.get(queue.name, 0.0) + 2 * INTERVAL < time.monotonic())
    sent.clear()
    yield queue
    wait_until(lambda: not waker._due, 30)


@pytest.mark.django_db(transaction=True)
def test_the_wake_goes_along_with_the_enqueue_it_is_for(queue: Any, sent: list[str], heard: Any) -> None:
    queue.enqueue("a")
    assert wait_until(heard) == [queue.name]
    assert sent == []


@pytest.mark.django_db(transaction=True)
def test_whoever_hears_it_sees_what_it_is_for(queue: Any, connect: Any) -> None:
    listener = connect()
    listener.execute("LISTEN workqueue")
    table = "workqueue_item" if isinstance(queue, Queue) else "workqueue_job"
    for number in range(20):
        queue.enqueue(f"key {number}")
        (note,) = listener.notifies(timeout=10, stop_after=1)
        assert note.payload == queue.name
        assert listener.execute(f"SELECT count(*) FROM {table}").fetchone() == (number + 2,)
        time.sleep(2 * INTERVAL)


@pytest.mark.django_db(transaction=True)
def test_one_that_the_server_refuses_is_sent_again_by_itself(
    queue: Any, sent: list[str], heard: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waker, "NOTIFY_ONE", "SELECT 1 / (%(queue)s::text = '')::int")
    queue.enqueue("a")
    wait_until(lambda: "refuses to wake other processes: division by zero" in caplog.text)
    assert wait_until(heard) == [queue.name]
    assert sent == [waker.NOTIFY]


@pytest.mark.django_db(transaction=True)
def test_one_that_went_along_in_vain_is_sent_again_behind_the_inbox(
    connect: Any, second: psycopg.Connection[Any]
) -> None:
    queue = Queue("along to the inbox")
    queue.enqueue("a")
    time.sleep(2 * INTERVAL)
    second.execute("LISTEN workqueue")
    holder = connect(autocommit=False)
    holder.execute("SELECT FROM workqueue_item WHERE queue = %s FOR UPDATE", [queue.name])
    queue.enqueue("a", priority=1)
    first, again = second.notifies(timeout=10, stop_after=2)
    assert first.payload == again.payload == queue.name
    assert second.execute("SELECT count(*) FROM workqueue_inbox").fetchone() == (1,)
    holder.rollback()


class Meanwhile(Commits):
    """One whose wake goes along, and which another thread asks to wake before it is known that it has."""

    def write(self, entries: Sequence[int]) -> None:
        self.waker.send_along(QUEUE)
        self.connection.run("SELECT %(number)s::int", {"number": 1})

    def after(self, entries: Sequence[int]) -> None:
        if self.connection._outstanding is not None:
            aside(self.waker.wake_later, QUEUE).result(10)
        super().after(entries)


def test_one_that_is_asked_for_meanwhile_is_not_taken_to_have_gone_along(heard: Any) -> None:
    commits = Meanwhile()
    commits.commit()
    notes: list[str] = []
    wait_until(lambda: notes.extend(heard()) or len(notes) == 2)
    assert notes == [QUEUE] * 2
    commits.batcher.close(10)


class Otherwise(Commits):
    """One whose statement is not of the kind behind which anything goes along."""

    def write(self, entries: Sequence[int]) -> None:
        self.waker.send_along(QUEUE)
        self.connection.execute("SELECT 1")


def test_one_that_could_not_go_along_is_sent_at_once(heard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commits, put_off = Otherwise(), list[float]()
    monkeypatch.setattr(commits.waker, "_set_timer", put_off.append)
    commits.commit()
    notes: list[str] = []
    wait_until(lambda: notes.extend(heard()) or notes)
    assert notes == [QUEUE]
    assert put_off == []
    commits.batcher.close(10)


def test_what_is_written_after_a_wake_that_went_along_has_one_of_its_own(heard: Any) -> None:
    """Two callers who wrote for themselves, one soon after the other, and only then what follows both."""
    commits = Commits()
    for number in (1, 2):
        commits.waker.send_along(QUEUE)
        commits.connection.run("SELECT %(number)s::int", {"number": number})
        commits.connection.behind = None
    commits.waker.wake(QUEUE)
    notes: list[str] = []
    wait_until(lambda: notes.extend(heard()) or len(notes) == 2)
    assert notes == [QUEUE] * 2
    commits.batcher.close(10)


def test_a_caller_that_is_interrupted_takes_no_wake_with_it(heard: Any) -> None:
    """The second of two came too soon after the first to go along, and is still to be followed."""

    class Interrupting(set[str]):
        def discard(self, queue: str) -> None:
            super().discard(queue)
            raise KeyboardInterrupt

    commits = Commits()
    commits.waker.send_along(QUEUE)
    commits.connection.run("SELECT %(number)s::int", {"number": 1})
    commits.waker.send_along(QUEUE)
    time.sleep(INTERVAL)
    commits.waker._asked = Interrupting(commits.waker._asked)
    with pytest.raises(KeyboardInterrupt):
        commits.waker.send_along(QUEUE)
    commits.waker._asked = set(commits.waker._asked)
    commits.waker.wake(QUEUE)
    notes: list[str] = []
    wait_until(lambda: notes.extend(heard()) or len(notes) == 2)
    commits.batcher.close(10)


@pytest.mark.django_db(transaction=True)
def test_with_notify_off_none_goes_along(queue: Any, settings: Any, heard: Any) -> None:
    settings.WORKQUEUE_NOTIFY = False
    queue.enqueue("a")
    assert heard() == []
