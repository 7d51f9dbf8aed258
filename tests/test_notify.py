"""Wakeups: that they arrive, that none is lost, and what becomes of the one connection they arrive on."""

import asyncio
import copy
import gc
import json
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import connections

from django_workqueue import notify
from django_workqueue.notify import Status, Wakeup, listener, occasional, session, subscribe, wake_local, wakeup
from tests.interleave import aside, wait_until
from tests.relay import relayed, replaced

pytestmark = pytest.mark.django_db(databases=["default", "other"])

QUEUE = "tiles"
LISTENS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%listen'"


@pytest.fixture(autouse=True)
def every_listener_ends() -> Iterator[None]:
    assert notify.close(10)  # those that other tests have left lingering
    yield
    assert notify.close(10)
    assert not listener_threads()


@pytest.fixture
def worker() -> Iterator[Wakeup]:
    """A worker's wakeup, listening; the wake that says so has been answered."""
    with listening(QUEUE) as made:
        yield made


@contextmanager
def listening(queue: str = QUEUE, alias: str = "default") -> Iterator[Wakeup]:
    made = subscribe(alias, queue)
    try:
        assert made.wait(10), "woken as soon as it listens"
        yield made
    finally:
        made.close()


def listener_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("workqueue-listen")]


def settled(alias: str, *statuses: Status) -> notify.ListenerState:
    """The alias's state, once it is one of these."""
    state: notify.ListenerState = wait_until(
        lambda: (found := notify.listener_state(alias)).status in statuses and found
    )
    return state


def pids_listening(observer: psycopg.Connection[Any]) -> list[int]:
    """The server processes that this process's listeners, or a child's, are connected to."""
    return [pid for (pid,) in observer.execute(LISTENS)]


def worker_pid() -> int:
    """The server process that this process is connected to."""
    opened = notify.switchboard().listeners["default"].session
    assert opened is not None
    return opened._connection.raw.info.backend_pid


def waiting_threads(waited_for: Wakeup) -> int:
    """How many threads have come as far as to sleep."""
    return len(waited_for._changed._waiters)  # type: ignore[attr-defined]


def send(connection: psycopg.Connection[Any], queue: str = QUEUE) -> None:
    connection.execute("SELECT pg_notify('workqueue', %s)", [queue])


def told(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


# Waking


def test_a_notification_wakes_the_queues_waiters_and_no_others(worker: Wakeup, second: Any) -> None:
    with listening("another queue") as other, listening(QUEUE) as beside:
        waits = [aside(each.wait, 10) for each in (worker, beside)]
        send(second)
        assert [wait.result(10) for wait in waits] == [True, True]
        assert not other.wait(0)


def test_a_wake_while_nobody_waits_is_kept_for_the_next_wait_and_for_that_only(worker: Wakeup, second: Any) -> None:
    with listening("last") as last:
        send(second)
        send(second, "last")
        assert last.wait(10)  # notifications arrive in order: the first is here as well
    assert worker.wait(0)
    assert not worker.wait(0)


def test_every_thread_that_waits_is_woken(worker: Wakeup, second: Any) -> None:
    waits = [aside(worker.wait, 10) for _ in range(5)]
    wait_until(lambda: waiting_threads(worker) == 5)
    send(second)
    assert all(wait.result(10) for wait in waits)


def test_coroutines_wait_beside_threads_without_blocking_their_loop(worker: Wakeup, second: Any) -> None:
    async def main() -> list[bool]:
        waiting = [asyncio.create_task(worker.await_wake(10)) for _ in range(2)]
        await asyncio.sleep(0)  # they run up to their waits
        assert len(worker._changed._pausing) == 2
        send(second)
        return await asyncio.gather(*waiting)

    thread = aside(worker.wait, 10)
    wait_until(lambda: waiting_threads(worker))
    assert asyncio.run(main()) == [True, True]
    assert thread.result(10)


def test_a_cancelled_await_loses_no_wake(worker: Wakeup) -> None:
    async def main() -> bool:
        waiting = asyncio.create_task(worker.await_wake(10))
        await asyncio.sleep(0)  # it runs up to its wait
        worker.set()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return await worker.await_wake(0.5) or not waiting.cancelled()

    assert asyncio.run(main())
    assert not worker._changed._pausing


def test_an_await_that_nobody_answers_leaves_nothing_behind(worker: Wakeup) -> None:
    assert not asyncio.run(worker.await_wake(0.01))
    assert not worker._changed._pausing


def test_a_loop_that_was_closed_while_it_waited_harms_nobody(worker: Wakeup) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(worker.await_wake(10))
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    future = next(iter(worker._changed._pausing))
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    with worker._changed:
        worker._changed._pausing.add(future)
    worker.set()
    assert worker.wait(0)


def test_this_process_wakes_itself_without_the_server(settings: Any) -> None:
    settings.WORKQUEUE_NOTIFY = False
    made = subscribe("default", QUEUE)
    wake_local("default", "another")
    wake_local("other", QUEUE)
    assert not made.wait(0)
    waiting = aside(made.wait, 10)
    wake_local("default", QUEUE)
    assert waiting.result(10)
    assert not listener_threads()


def test_an_unused_timeout_ends_in_false(worker: Wakeup) -> None:
    started = time.monotonic()
    assert not worker.wait(0.05)
    assert time.monotonic() - started >= 0.05


def test_a_stop_event_ends_the_wait_and_keeps_the_wake(worker: Wakeup) -> None:
    stop = threading.Event()
    waiting = aside(worker.wait, 10, stop)
    wait_until(lambda: worker._waiters)
    stopped = time.monotonic()
    stop.set()
    assert not waiting.result(10)
    assert time.monotonic() - stopped < 10 * wakeup.STOP_SLICE
    worker.set()
    assert not worker.wait(10, stop)
    assert worker.wait(0)


def test_set_and_close_end_a_wait_at_once(worker: Wakeup) -> None:
    waiting = aside(worker.wait, 10)
    worker.set()
    assert waiting.result(10)
    waiting = aside(worker.wait, 10)
    wait_until(lambda: worker._waiters)
    worker.close()
    assert waiting.result(1) is False
    assert worker.wait(10) is False


def test_clear_forgets_a_wake(worker: Wakeup) -> None:
    worker.set()
    worker.clear()
    assert not worker.wait(0)


def test_the_floor_spaces_early_returns_and_loses_no_wake(worker: Wakeup) -> None:
    worker.set()
    assert worker.wait(10, floor=0.2)
    answered = time.monotonic()
    worker.set()
    assert not worker.wait(0.01, floor=0.2), "too soon"
    assert worker.wait(10, floor=0.2)
    assert time.monotonic() - answered >= 0.19
    assert not worker.wait(0, floor=0.2)


def test_the_floor_does_not_hold_up_those_who_waited_together() -> None:
    never_woken = occasional("default", QUEUE)
    waits = [aside(never_woken.wait, 10, floor=60) for _ in range(3)]
    wait_until(lambda: waiting_threads(never_woken) == 3)
    never_woken.set()
    assert all(wait.result(5) for wait in waits)


@pytest.mark.parametrize(
    "queue",
    [
        "it's",
        'a "b"',
        "100% %s %(x)s {}",
        "ünï¢ödé 🐘",
        " padded ",
        "'; DROP TABLE x; --",
        "x" * 128,
        "\\",
        "$1",
        "ÄÖ" * 32,
    ],
)
def test_a_queue_of_any_name_is_woken(queue: str, second: Any) -> None:
    with listening(queue) as hostile:
        send(second, queue)
        assert hostile.wait(10)


# The connection


def test_all_waiters_of_a_process_share_one_connection_and_one_thread(worker: Wakeup, second: Any) -> None:
    with listening("a"), listening("b"):
        wait_until(lambda: pids_listening(second) == [worker_pid()])
        assert [thread.name for thread in listener_threads()] == ["workqueue-listen-default"]
        assert listener_threads()[0].daemon


def test_a_killed_connection_is_replaced_and_everybody_woken_once(
    worker: Wakeup, second: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with listening("idle") as idle:
        second.execute(f"SELECT pg_terminate_backend(pid) FROM ({LISTENS}) AS listening")
        assert worker.wait(10)
        assert idle.wait(10)
        send(second, "idle")
        assert idle.wait(10)
        assert not worker.wait(0)
    assert len(told(caplog, "No LISTEN connection on database alias 'default'")) == 1
    assert len(told(caplog, "Listening again")) == 1


def test_an_outage_is_told_once_however_long_it_lasts(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr(listener, "RECONNECT", lambda _: timedelta(milliseconds=1))
    with relayed() as relay, listening(alias="other") as waiting:
        relay.close()
        failed = notify.switchboard().listeners["other"]
        wait_until(lambda: failed._failures > 5)
        assert settled("other", Status.LOST).error
        assert not waiting.wait(0)
    assert len(told(caplog, "No LISTEN connection")) == 1


def test_the_next_try_is_at_once_when_somebody_finds_that_the_database_can_be_reached(monkeypatch: Any) -> None:
    monkeypatch.setattr(listener, "RECONNECT", lambda _: timedelta(hours=1))
    with relayed() as relay, listening(alias="other") as waiting:
        for _ in range(2):
            relay.cut()
            settled("other", Status.LOST)
            notify.reachable("other")
            assert waiting.wait(10), "listening again"
        notify.reachable("other")
        notify.reachable("default")  # where nobody listens


def test_the_self_check_notices_a_connection_that_died_silently(
    second: Any, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "CHECK_EVERY", 0.1)
    monkeypatch.setattr(session, "WITHIN", 1.0)
    with relayed() as relay, listening(alias="other") as waiting:
        relay.freeze()
        assert waiting.wait(10), "reconnected"
        send(second)
        assert waiting.wait(10)
    assert "no answer from the server" in told(caplog, "No LISTEN connection")[0]


def test_a_healthy_connection_passes_its_checks(worker: Wakeup, second: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(listener, "CHECK_EVERY", 0.01)
    alive = notify.switchboard().listeners["default"].session
    assert alive is not None
    worker.wait(0)
    notify.switchboard().nudge()
    checked = alive.heard_at
    wait_until(lambda: alive.heard_at > checked + 0.1)
    assert notify.switchboard().listeners["default"].session is alive
    assert not worker.wait(0)


def test_behind_a_transaction_pooling_proxy_it_says_so_once_and_names_the_way_out(
    monkeypatch: Any, caplog: pytest.LogCaptureFixture, settings: Any, second: Any
) -> None:
    monkeypatch.setattr(session, "WITHIN", 0.3)
    monkeypatch.setattr(listener, "DEAF_PAUSE", 0.01)
    with relayed(pooling=True):
        waiting = subscribe("other", QUEUE)
        assert settled("other", Status.DEAF).error
        wait_until(lambda: notify.switchboard().listeners["other"]._failures > 2)
        wake_local("other", QUEUE)
        assert waiting.wait(10), "what this process says is heard"
        assert len(told(caplog, "WORKQUEUE_LISTEN_DATABASE")) == 1

        settings.WORKQUEUE_LISTEN_DATABASE, settings.WORKQUEUE_DATABASE = "default", "other"
        waits = aside(waiting.wait, 10)
        settled("default", Status.LISTENING)
        assert waits.result(10), "woken as soon as it listens"
        send(second)
        assert waiting.wait(10)
        waiting.close()


def test_the_proxy_of_these_tests_would_deceive_a_check_of_its_own_connection(monkeypatch: Any) -> None:
    monkeypatch.setattr(session.Session, "pooled", False)
    with relayed(pooling=True):
        assert notify.probe("other").status is Status.LISTENING


def test_probe_tells_how_listening_fares_and_leaves_nothing_behind(second: Any) -> None:
    assert notify.listener_state("default").status is Status.OFF
    assert notify.probe("default").status is Status.LISTENING
    wait_until(lambda: not pids_listening(second))
    assert notify.listener_state("default").status is Status.OFF
    with relayed() as relay:
        relay.close()
        assert notify.probe("other").status is Status.LOST
        assert notify.close(10)


def test_tcp_keepalives_are_set_unless_the_options_say_how(second: Any) -> None:
    def idle_seconds() -> int:
        with listening(alias="other"):
            opened = notify.switchboard().listeners["other"].session
            assert opened is not None
            with socket.socket(fileno=os.dup(opened._connection.raw.fileno())) as tcp:
                idle: int = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        assert notify.close(10)
        return idle

    with relayed():
        assert idle_seconds() == 15
        connections.settings["other"]["OPTIONS"]["keepalives_idle"] = 77
        assert idle_seconds() == 77


def test_a_wait_by_hand_is_not_woken_by_the_listeners_first_connection(second: Any) -> None:
    by_hand = occasional("default", QUEUE)
    waiting = aside(by_hand.wait, 10)
    settled("default", Status.LISTENING)
    assert not waiting.done()
    send(second)
    assert waiting.result(10)


def test_what_a_wait_by_hand_missed_while_it_did_not_listen_wakes_the_next(second: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(wakeup, "LINGER", timedelta(milliseconds=10))
    by_hand = occasional("default", QUEUE)
    waiting = aside(by_hand.wait, 10)
    settled("default", Status.LISTENING)
    send(second)
    assert waiting.result(10)
    settled("default", Status.OFF)
    assert by_hand.wait(10)
    assert not by_hand.wait(0)


def test_a_wait_by_hand_listens_a_little_longer(second: Any) -> None:
    by_hand = occasional("default", QUEUE)
    waiting = aside(by_hand.wait, 10)
    settled("default", Status.LISTENING)
    send(second)
    assert waiting.result(10)
    send(second)
    wait_until(lambda: by_hand._rung > by_hand._answered)
    assert by_hand.wait(0)


def test_the_database_can_be_dropped_soon_after_the_last_wait(second: Any) -> None:
    second.execute("DROP DATABASE IF EXISTS workqueue_scratch")
    second.execute("CREATE DATABASE workqueue_scratch")
    with replaced("other", {**copy.deepcopy(connections.settings["default"]), "NAME": "workqueue_scratch"}):
        by_hand = occasional("other", QUEUE)
        waiting = aside(by_hand.wait, 10)
        settled("other", Status.LISTENING)
        by_hand.set()
        assert waiting.result(10)
        started = time.monotonic()
        settled("other", Status.OFF)
        assert time.monotonic() - started < 2
        second.execute("DROP DATABASE workqueue_scratch")


def test_close_gives_the_connection_back_now_and_a_later_wait_opens_another(worker: Wakeup, second: Any) -> None:
    assert notify.close(10)
    wait_until(lambda: not pids_listening(second))
    waiting = aside(worker.wait, 10)
    assert waiting.result(10), "woken as soon as it listens again"
    send(second)
    assert worker.wait(10)


def test_a_forgotten_wakeup_is_not_kept_alive() -> None:
    by_hand = occasional("default", "forgotten")  # a name that no other test's waits still hold
    assert len(wakeup._wakeups["default", "forgotten"]) == 1
    del by_hand
    gc.collect()
    assert ("default", "forgotten") not in wakeup._wakeups, "nor is its queue's name"


def test_without_threads_the_poll_goes_on(monkeypatch: Any) -> None:
    def no_more(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    by_hand = occasional("default", QUEUE)
    assert not by_hand.wait(0.01)
    assert notify.listener_state("default").status is Status.OFF


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_listens_on_a_connection_of_its_own_and_leaves_the_parents_alone(
    worker: Wakeup, second: Any
) -> None:
    parents = worker_pid()
    read, write = os.pipe()
    ready_read, ready_write = os.pipe()
    waiting = aside(worker.wait, 0.01)  # somebody may well be waiting at the moment of the fork
    child = os.fork()
    if child == 0:
        try:
            again = worker.wait(10)  # listens again, in this process
            os.write(ready_write, b"!")
            outcome = {"again": again, "woken": worker.wait(10), "threads": len(listener_threads())}
            notify.close(5)
            os.write(write, json.dumps(outcome).encode())
        finally:
            os._exit(0)
    waiting.result(10)
    assert os.read(ready_read, 1) == b"!"
    wait_until(lambda: len(pids := pids_listening(second)) == 2 and parents in pids)
    send(second)
    assert json.loads(os.read(read, 1000)) == {"again": True, "woken": True, "threads": 1}
    assert os.waitpid(child, 0)[1] == 0
    assert worker.wait(10)
    send(second)
    assert worker.wait(10), "the parent's connection has survived the child's end"
    wait_until(lambda: pids_listening(second) == [parents])
    for end in (read, write, ready_read, ready_write):
        os.close(end)


def test_joining_and_leaving_from_many_threads_loses_nobody(second: Any) -> None:
    """Listeners come and go with their receivers, and a receiver that stays hears."""

    def come_and_go(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(30):
            with listening(f"queue {seed}") as made:
                if chance.random() < 0.3:
                    notify.close(10)
                    assert made.wait(10)
                wake_local("default", f"queue {seed}")
                assert made.wait(10)

    for done in [aside(come_and_go, seed) for seed in range(4)]:
        done.result(60)
    with listening() as made:
        send(second)
        assert made.wait(10)


def test_an_idle_listener_logs_nothing(worker: Wakeup, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "django_workqueue"):
        worker.wait(0.05)
    assert not caplog.records


def test_async_to_sync_waits_too(worker: Wakeup) -> None:
    worker.set()
    assert async_to_sync(worker.await_wake)(10)
