"""Queue objects: several of one name, and waiting on one."""

import gc
import threading
import time
import weakref
from datetime import timedelta
from enum import Enum

import pytest
from django.db import transaction

from django_workqueue import JobQueue, Queue
from tests.keyed.test_enqueue import HOUR, MINUTE

# Two objects of one name


@pytest.mark.parametrize(
    "other",
    [
        {"max_attempts": 3},
        {"retention": HOUR},
        {"max_claim": 3},
        {"reap_batch": 3},
        {"min_wake_interval": HOUR},
        {"key": int},
        {"using": "default", "max_attempts": 3},
        {"using": "default", "key": int},
    ],
)
def test_two_queues_of_one_name_with_different_settings_are_refused(queue, name, other):
    with pytest.raises(ValueError, match=next(reversed(other))) as raised:
        Queue(name, **other)
    assert name in str(raised.value)


def test_queues_of_one_name_on_different_databases_are_different_queues(queue, name):
    assert Queue(name, using="other", max_attempts=3).source is not queue.source


def test_a_queue_that_names_the_alias_of_the_settings_is_the_one_that_names_none(queue, name):
    assert Queue(name, using="default").source is queue.source

    @queue.handler
    def first(item):
        """The one."""

    with pytest.raises(ValueError, match="has a handler already"):

        @Queue(name, using="default").handler
        def second(item):
            """The other."""


def test_a_name_that_is_an_enums_member_is_its_value(db, name):
    names = Enum("names", {"TILES": name}, type=str)
    queue = Queue(names.TILES)
    assert queue.name == name
    assert type(queue.name) is str
    assert queue.source is Queue(name).source


def test_two_queues_with_equal_codecs_agree(make_queue):
    class Prefixed:
        def __init__(self, prefix):
            self.prefix = prefix

        def encode(self, key):
            return self.prefix + key

        def decode(self, text):
            return text.removeprefix(self.prefix)

    queue = make_queue(key=Prefixed("x"))
    assert make_queue(key=Prefixed("x")).source is queue.source
    with pytest.raises(ValueError, match="key"):
        make_queue(key=Prefixed("y"))


def test_two_queues_with_equal_codecs_of_slots_agree(make_queue):
    class Prefixed:
        __slots__ = ("prefix",)

        def __init__(self, prefix):
            self.prefix = prefix

        def encode(self, key):
            return self.prefix + key

        def decode(self, text):
            return text.removeprefix(self.prefix)

    queue = make_queue(key=Prefixed("x"))
    assert make_queue(key=Prefixed("x")).source is queue.source
    with pytest.raises(ValueError, match="key"):
        make_queue(key=Prefixed("y"))


def test_a_dropped_queue_may_come_back_with_other_settings(queue, name, make_queue):
    elsewhere = f"{name}, dropped"
    one = Queue(elsewhere, max_attempts=3)
    del one
    assert Queue(elsewhere, max_attempts=5).source.settings.max_attempts == 5


# Waiting


def test_wait_returns_early_on_a_wake(queue, aside, wait_until):
    waiting = aside(queue.wait, timedelta(seconds=30))
    started = time.monotonic()
    wait_until(lambda: queue._wakeup is not None and queue._wakeup._waiters)
    queue.enqueue("a")
    assert waiting.result(timeout=10) is True
    assert time.monotonic() - started < 10


def test_wait_without_a_wake_is_false_after_poll(queue):
    queue.wait(timedelta(milliseconds=1))  # what the queue's making may have left
    assert queue.wait(timedelta(milliseconds=50)) is False


def test_a_wake_that_came_while_nobody_waited_is_not_lost(queue):
    queue.enqueue("a")
    started = time.monotonic()
    assert queue.wait(timedelta(seconds=30)) is True
    assert time.monotonic() - started < 10


def test_min_wake_interval_floors_how_often_wait_returns_early(make_queue):
    queue = make_queue(min_wake_interval=timedelta(milliseconds=300))
    queue.enqueue("a")
    assert queue.wait(timedelta(seconds=30)) is True
    first = time.monotonic()
    queue.enqueue("b")
    assert queue.wait(timedelta(seconds=30)) is True
    assert 0.25 < time.monotonic() - first < 10


def test_wait_ends_when_it_is_told_to_stop(queue, aside, wait_until):
    queue.wait(timedelta(milliseconds=1))
    stop = threading.Event()
    waiting = aside(queue.wait, timedelta(seconds=30), stop)
    stop.set()
    assert waiting.result(timeout=10) is False


@pytest.mark.parametrize("poll", [timedelta(0), -MINUTE])
def test_a_poll_of_no_length_raises(queue, poll):
    with pytest.raises(ValueError, match="poll is positive"):
        queue.wait(poll)


@pytest.mark.parametrize("face", [Queue, JobQueue])
def test_a_queue_is_let_go_of_though_a_claim_in_a_transaction_found_last_attempts_that_lapsed(db, name, face):
    queue = face(name, max_attempts=1)
    queue.enqueue("a")
    with transaction.atomic():
        assert queue.claim(lease=timedelta(microseconds=1))
        assert queue.claim() == []
    assert queue.stats().stalled == 1
    source = weakref.ref(queue.source)
    del queue
    gc.collect()
    assert source() is None
