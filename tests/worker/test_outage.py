"""The database goes and comes back: nothing exits, nothing spins, nothing is lost."""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, ProgrammingError
from psycopg.errors import InsufficientPrivilege, UndefinedTable

from django_workqueue import Item, JobQueue, Queue, engine, notify
from django_workqueue.database import Connection
from django_workqueue.engine import Claim, Fence
from django_workqueue.worker import Counts, Unavailable, Worker, crew, outage
from django_workqueue.worker.outage import Outage, Patience
from testproject import postgres
from tests import conftest as house
from tests.interleave import wait_until
from tests.worker.conftest import Running, Shop

Working = Callable[..., Running]

HOUR = timedelta(hours=1)


def refusal(kind: type[psycopg.Error], said: str) -> ProgrammingError:
    error = ProgrammingError(said)
    error.__cause__ = kind()
    return error


OURS = "datname = current_database() AND application_name LIKE 'django_workqueue %'"


def test_every_connection_of_ours_may_be_cut_at_any_time(
    queue: Queue[str], working: Working, second: psycopg.Connection[Any]
) -> None:
    runs: list[str] = []

    @queue.handler
    def work(item: Item[str]) -> None:
        runs.append(item.key)
        time.sleep(0.001)

    running = working(queue)
    total = 0
    for _ in range(8):
        queue.enqueue_many(f"{number:05d}" for number in range(total, total + 250))
        total += 250
        second.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")
        wait_until(lambda: len(set(runs)) >= total - 125, 20)  # noqa: B023
    wait_until(lambda: queue.stats().completed == total, 30)
    assert len(set(runs)) == total
    running.stop()


def test_it_says_so_once_when_it_goes_and_once_when_it_is_back(
    queue: Queue[str], working: Working, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claim, gone, tries = queue.source.claim_on, threading.Event(), list[float]()

    def claim_on(*args: Any) -> Any:
        if gone.is_set():
            tries.append(time.monotonic())
            raise OperationalError("the server closed the connection unexpectedly")
        return claim(*args)

    monkeypatch.setattr(queue.source, "claim_on", claim_on)
    queue.handler(lambda item: None)
    running = working(queue, poll=0.05)
    wait_until(running.is_idle)
    gone.set()
    wait_until(lambda: len(tries) == 5, 20)
    assert tries[4] - tries[0] > 0.5  # waits, longer each time
    gone.clear()
    queue.enqueue("a")
    wait_until(lambda: queue.stats().completed == 1)
    wait_until(lambda: "is back" in caplog.text)
    assert len(re.findall("cannot be used", caplog.text)) == 1
    assert len(re.findall("is back", caplog.text)) == 1


def test_where_tables_are_missing_it_says_that_they_are_to_be_migrated(
    queue: Queue[str], working: Working, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def claim_on(*_: Any) -> Any:
        raise ProgrammingError('relation "workqueue_item" does not exist') from psycopg.errors.UndefinedTable()

    monkeypatch.setattr(queue.source, "claim_on", claim_on)
    queue.handler(lambda item: None)
    running = working(queue, poll=0.05)
    wait_until(lambda: "run `manage.py migrate`" in caplog.text)
    running.stop()


def test_what_is_refused_is_said_once_for_all_parts_until_it_changes_in_kind(caplog: pytest.LogCaptureFixture) -> None:
    shared = Outage("default")
    claim, maintain = Patience("claim", shared), Patience("maintain", shared)
    for table in ("workqueue_queue", "workqueue_worker", "workqueue_minute"):
        for part in (claim, maintain):
            part.failed(refusal(UndefinedTable, f'relation "{table}" does not exist'))
        maintain.succeeded()  # in something else that it does
    assert len(caplog.records) == 1
    for part in (claim, claim, maintain):
        part.failed(refusal(InsufficientPrivilege, "permission denied"))
    assert re.findall(r"refuses what (.*) needs", caplog.text) == ["claiming work", "looking after the queues"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [(UndefinedTable, "has the tables of django_workqueue now"), (InsufficientPrivilege, "refuses nothing any more")],
)
def test_it_says_once_when_nothing_is_refused_any_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: type[psycopg.Error], said: str
) -> None:
    shared = Outage("default")
    claim, maintain = Patience("claim", shared), Patience("maintain", shared)
    claim.failed(refusal(kind, "no such thing"))
    maintain.succeeded()
    assert said not in caplog.text
    monkeypatch.setattr(outage, "CALM", -1.0)
    for part in (claim, maintain):
        part.succeeded()
    assert len(re.findall(said, caplog.text)) == 1
    claim.failed(refusal(kind, "no such thing again"))
    assert "no such thing again" in caplog.text


def test_what_has_nothing_to_do_does_not_keep_the_database_away(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does what then goes on count as the end of it."""
    shared = Outage("default")
    claim, start = Patience("claim", shared), Patience("start", shared)
    for part in (start, claim, start, claim):
        part.failed(OperationalError("gone"))
    claim.succeeded()
    assert len(re.findall("is back after", caplog.text)) == 1
    start.succeeded()
    assert len(caplog.records) == 2
    renew = Patience("renew", Outage("other"))
    for _ in range(2):
        renew.failed(OperationalError("gone"))
    renew.is_idle()
    renew.succeeded()
    assert re.findall("'other' (.*?) for", caplog.text) == ["cannot be used"]


def test_who_listens_hears_of_it_when_the_database_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(notify, "reachable", heard.append)
    claim = Patience("claim", Outage("other"))
    for _ in range(2):
        claim.failed(OperationalError("gone"))
    assert not heard
    claim.succeeded()
    assert heard == ["other"]


def test_a_claim_for_which_nothing_was_asked_is_no_sign_that_the_database_is_back(
    queue: Queue[str], working: Working, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As while no kind of task has a handler yet."""
    claim, gone, unasked = queue.source.claim_on, threading.Event(), list[Claim]()

    def claim_on(*args: Any) -> Any:
        if not gone.is_set():
            return claim(*args)
        if "cannot be used for claiming work" not in caplog.text:
            raise OperationalError("the server closed the connection unexpectedly")
        unasked.append(Claim(Fence(0, 0.0), HOUR, asked=False))
        return unasked[-1]

    monkeypatch.setattr(queue.source, "claim_on", claim_on)
    queue.handler(lambda item: None)
    running = working(queue, poll=0.05)
    wait_until(running.is_idle)
    gone.set()
    wait_until(lambda: len(unasked) > 2)
    assert "is back" not in caplog.text
    gone.clear()
    wait_until(lambda: "is back" in caplog.text)


def test_while_no_kind_has_a_handler_the_database_is_asked_only_now_and_then_whether_any_waits(db: None) -> None:
    source = JobQueue(f"to be found {os.getpid()}").source
    engine.add_finder(source, lambda kind: None, lease=HOUR, timeout=None, backoff=lambda attempts: HOUR)
    own = Connection("default", application="test")
    assert [source.claim_on(own, 10, HOUR, []).asked for _ in range(2)] == [True, False]
    assert source.claim_on(own, 10, HOUR, ["known"]).asked
    own.close()


def test_a_connection_that_was_cut_and_is_made_anew_at_once_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "django_workqueue")
    shared = Outage("default")
    claim, settle, start = (Patience(part, shared) for part in ("claim", "settle", "start"))
    for part in (claim, settle, claim):
        part.failed(OperationalError("connection refused"))
    for part in (claim, settle):
        part.succeeded()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    start.failed(OperationalError("terminating connection due to administrator command"))
    start.succeeded()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING", "INFO"]
    assert "terminating connection" in caplog.text


def test_a_connection_on_a_read_only_standby_is_dropped_and_remade(
    queue: Queue[str], working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, connections = queue.source.claim_on, list[int]()

    def claim_on(connection: Any, *args: Any) -> Any:
        connections.append(connection.raw.info.backend_pid)
        if len(connections) == 2:
            connection.execute("SET default_transaction_read_only = on")  # as after a switch-over
        return claim(connection, *args)

    monkeypatch.setattr(queue.source, "claim_on", claim_on)
    queue.handler(lambda item: None)
    running = working(queue, poll=0.05)
    wait_until(lambda: len(connections) >= 2)
    queue.enqueue("a")
    wait_until(lambda: queue.stats().completed == 1)
    assert len(set(connections)) == 2
    running.stop()


def test_outcomes_are_kept_while_the_database_is_gone_and_written_when_it_is_back(
    queue: Queue[str], working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, gone, claimed = queue.source.settle_on, threading.Event(), list[int]()
    claim = queue.source.claim_on

    def settle_on(*args: Any) -> Any:
        if gone.is_set():
            raise OperationalError("gone")
        return settle(*args)

    def claim_on(*args: Any) -> Any:
        answer = claim(*args)
        claimed.append(len(answer.works))
        return answer

    monkeypatch.setattr(queue.source, "settle_on", settle_on)
    monkeypatch.setattr(queue.source, "claim_on", claim_on)
    monkeypatch.setattr(queue.source, "max_claim", 100)
    gone.set()
    queue.handler(lambda item: None)
    queue.enqueue_many(f"{number:05d}" for number in range(3000))
    running = working(queue)
    wait_until(lambda: sum(claimed) > 400)
    time.sleep(0.3)
    assert sum(claimed) < 1000  # what is claimed is bounded while nothing can be settled
    gone.clear()
    wait_until(lambda: queue.stats().completed == 3000, 30)
    assert running.stop() == Counts(completed=3000)


def test_what_the_database_refuses_is_said_once_and_tried_again(
    queue: Queue[str], working: Working, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claim, refused = queue.source.claim_on, list[int]()

    def claim_on(connection: Any, *args: Any) -> Any:
        if len(refused) < 3:
            refused.append(1)
            connection.execute("SELECT * FROM no_such_table")
        return claim(connection, *args)

    monkeypatch.setattr(queue.source, "claim_on", claim_on)
    queue.handler(lambda item: None)
    queue.enqueue("a")
    working(queue)
    wait_until(lambda: queue.stats().completed == 1)
    assert len(re.findall("no_such_table", caplog.text)) == 1


def test_a_stop_keeps_its_deadline_while_the_database_is_gone(
    queue: Queue[str], working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = threading.Event()

    def settle_on(*args: Any) -> Any:
        raise OperationalError("gone")

    monkeypatch.setattr(queue.source, "settle_on", settle_on)
    queue.handler(lambda item: started.set())
    queue.enqueue("a")
    running = working(queue)
    assert started.wait(10)
    begun = time.monotonic()
    running.stop(1)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("part", ["claim_on", "settle_on"])
@pytest.mark.parametrize("error", [OperationalError("gone\nfor ever"), ProgrammingError("no such column")])
def test_a_drain_that_cannot_go_on_gives_up_after_a_while(
    queue: Queue[str], monkeypatch: pytest.MonkeyPatch, part: str, error: Exception
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(queue.source, part, fails)
    monkeypatch.setattr(crew, "GIVE_UP", 0.5)
    queue.handler(lambda item: None)
    queue.enqueue("a")
    begun = time.monotonic()
    with pytest.raises(Unavailable, match=rf"'default' could not be used for 0.5 s, .*: {str(error)[:4]}"):
        Worker([queue], shutdown_timeout=0).drain()
    assert time.monotonic() - begun < 10


def test_a_drain_outlasts_an_outage_that_is_short_however_long_its_handlers_take(
    queue: Queue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, tries = queue.source.claim_on, itertools.count()

    def claim_on(*args: Any) -> Any:
        if next(tries) == 1:  # the second, before a handler that takes longer than a drain is patient
            raise OperationalError("gone")
        return claim(*args)

    monkeypatch.setattr(queue.source, "claim_on", claim_on)
    monkeypatch.setattr(crew, "GIVE_UP", 0.3)
    queue.handler(lambda item: time.sleep(1.5))
    queue.enqueue("a", "b")
    assert Worker([queue], concurrency=1).drain() == Counts(completed=2)
    assert next(tries) > 2


@pytest.mark.timeout(180)
def test_worker_processes_survive_a_crash_and_restart_of_the_server(shop: Shop) -> None:
    server = postgres.throwaway().start()
    env = os.environ | house.environment() | {
        "DATABASE_URL": server.url, "DJANGO_SETTINGS_MODULE": "tests.worker.settings", "SHOP_LOG": str(shop.log),
        "PYTHONPATH": str(house.PROJECT), "WORKQUEUE_TEST_OTHER": "nowhere",
    }  # fmt: skip
    manage = [sys.executable, str(house.PROJECT / "testproject" / "manage.py")]
    enqueue = "from tests.worker.shop.tasks import sync; import sys; sync.enqueue({!r})"
    try:
        subprocess.run([*manage, "migrate", "-v0"], env=env, check=True)
        process = shop.start("shop-sync", "--processes", "2", "--poll", "0.2", DATABASE_URL=server.url)
        subprocess.run([*manage, "shell", "-v0", "-c", enqueue.format("ok-1")], env=env, check=True)
        shop.wait_for("ended", "ok-1")
        pids = {pid for _, _, pid in shop.notes("ended")}
        for crash in range(2):
            server.halt(mode="immediate")
            server.boot()
            subprocess.run([*manage, "shell", "-v0", "-c", enqueue.format(f"ok-{crash + 2}")], env=env, check=True)
            shop.wait_for("ended", f"ok-{crash + 2}")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=30)[0]
        assert process.returncode == 0
        assert "starting another" not in said
        assert pids
    finally:
        server.close()
