"""What is refused, and that the refusal says what was given and what is wanted. Keys: test_keys.py."""

import functools
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync

from django_workqueue import Entry, Item, Queue
from tests.keyed.test_enqueue import HOUR, MINUTE

CENTURIES = timedelta(days=999_999)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"max_attempts": -1}, ValueError, r"max_attempts lies between 0 and \d+; got -1"),
        ({"max_attempts": 2**31}, ValueError, r"max_attempts lies between"),
        ({"max_attempts": 1.5}, TypeError, r"max_attempts is a whole number, not 1\.5"),
        ({"max_attempts": True}, TypeError, r"max_attempts is a whole number, not True"),
        ({"max_attempts": None}, TypeError, r"max_attempts is a whole number, not None"),
        ({"retention": -HOUR}, ValueError, r"retention is not negative; got -1 day"),
        ({"retention": 3600}, TypeError, r"retention is a timedelta, not 3600"),
        ({"retention": CENTURIES}, ValueError, r"retention is at most a thousand years"),
        ({"max_claim": 0}, ValueError, r"max_claim lies between 1 and \d+; got 0"),
        ({"max_claim": "5"}, TypeError, r"max_claim is a whole number, not '5'"),
        ({"reap_batch": 0}, ValueError, r"reap_batch lies between 1"),
        ({"min_wake_interval": -MINUTE}, ValueError, r"min_wake_interval is not negative"),
        ({"min_wake_interval": 0.1}, TypeError, r"min_wake_interval is a timedelta, not 0\.1"),
        ({"retries": 5}, TypeError, r"retries"),
    ],
)
def test_a_queue_is_not_made_of_what_it_cannot_be_made_of(name, options, error, says):
    with pytest.raises(error, match=says):
        Queue(name, **options)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda queue: queue.enqueue("a", priority=2**31), ValueError, r"priority lies between .* got 2147483648"),
        (lambda queue: queue.enqueue("a", priority=-(2**31)), ValueError, r"priority lies between .* got -2147483648"),
        (lambda queue: queue.enqueue("a", priority=1.0), TypeError, r"priority is an int, not 1\.0"),
        (lambda queue: queue.enqueue("a", priority=True), TypeError, r"priority is an int, not True"),
        (lambda queue: queue.enqueue("a", priority=None), TypeError, r"priority is an int, not None"),
        (lambda queue: queue.enqueue("a", delay=5), TypeError, r"delay is a timedelta, not 5"),
        (lambda queue: queue.enqueue("a", delay=CENTURIES), ValueError, r"delay is at most a thousand years"),
        (lambda queue: queue.enqueue("a", timeout=0), ValueError, r"timeout is a positive number of seconds, not 0"),
        (lambda queue: queue.enqueue("a", timeout=-1), ValueError, r"timeout is a positive number of seconds, not -1"),
        (lambda queue: queue.enqueue("a", timeout=float("nan")), ValueError, r"timeout is a positive number"),
        (
            lambda queue: queue.enqueue("a", timeout=MINUTE),
            TypeError,
            r"timeout is a number of seconds, not datetime",
        ),
        (lambda queue: queue.enqueue("a", timeout="5"), TypeError, r"timeout is a number of seconds, not '5'"),
        (lambda queue: queue.enqueue("a", timeout=True), TypeError, r"timeout is a number of seconds, not True"),
        (lambda queue: queue.enqueue_many(["a"], timeout=MINUTE), TypeError, r"timeout is a number of seconds"),
        (lambda queue: queue.close(MINUTE), TypeError, r"timeout is a number of seconds"),
        (lambda queue: queue.enqueue_many(["a", Entry("b", 1.5)]), TypeError, r"priority is an int, not 1\.5"),
        (lambda queue: queue.enqueue_many(["a", Entry("b", 0, 7)]), TypeError, r"delay is a timedelta, not 7"),
        (lambda queue: queue.enqueue_many(["a", 5]), ValueError, r"str.*int: 5"),
        (lambda queue: queue.enqueue_many(5), TypeError, r"iterable"),
        (
            lambda queue: queue.enqueue_many("abc"),
            TypeError,
            r"entries is a list .*, not a str\. .* put it into a list",
        ),
        (lambda queue: queue.enqueue_many(b"abc"), TypeError, r"entries is a list .*, not a bytes"),
        (lambda queue: queue.enqueue_many({"a": 1}), TypeError, r"entries is a list .*, not a dict"),
        (lambda queue: async_to_sync(queue.aenqueue_many)("abc"), TypeError, r"entries is a list .*, not a str"),
        (lambda queue: queue.enqueue(["a", "b"]), ValueError, r"not list: .* one by one, as in enqueue\(\*keys\)"),
        (lambda queue: queue.remove({"a"}), ValueError, r"not set: .* one by one"),
        (lambda queue: queue.enqueue(b"a"), ValueError, r"not bytes: b'a'$"),
        (lambda queue: queue.claim(0), ValueError, r"limit lies between 1 and \d+; got 0"),
        (lambda queue: queue.claim(-5), ValueError, r"limit lies between 1"),
        (lambda queue: queue.claim(1.5), TypeError, r"limit is a whole number, not 1\.5"),
        (lambda queue: queue.claim(True), TypeError, r"limit is a whole number, not True"),
        (lambda queue: queue.claim(1, timedelta(0)), ValueError, r"lease is positive; got 0:00:00"),
        (lambda queue: queue.claim(lease=30), TypeError, r"lease is a timedelta, not 30"),
        (lambda queue: queue.claim(lease=CENTURIES), ValueError, r"lease is at most a thousand years"),
        (lambda queue: queue.complete(5), ValueError, r"str.*int: 5"),
        (lambda queue: queue.complete("a", ""), ValueError, r"empty"),
        (lambda queue: queue.complete(Item("a", "another queue")), ValueError, r"'another queue', not from"),
        (lambda queue: queue.release("a", delay=1), TypeError, r"delay is a timedelta, not 1"),
        (lambda queue: queue.release(Item("a", "another queue")), ValueError, r"'another queue', not from"),
        (lambda queue: queue.extend("a", lease=MINUTE), TypeError, r"items that were claimed .* not 'a'"),
        (lambda queue: queue.extend(lease=timedelta(0)), ValueError, r"lease is positive"),
        (lambda queue: queue.extend(lease=5), TypeError, r"lease is a timedelta, not 5"),
        (
            lambda queue: queue.extend(Item("a", "another queue"), lease=MINUTE),
            ValueError,
            r"'another queue', not from",
        ),
        (lambda queue: queue.remove("a", 5), ValueError, r"str.*int: 5"),
        (lambda queue: queue.wait(timedelta(0)), ValueError, r"poll is positive"),
        (lambda queue: queue.wait(5), TypeError, r"poll is a timedelta, not 5"),
        (lambda queue: queue.handler(lease=timedelta(0)), ValueError, r"lease is positive"),
        (lambda queue: queue.handler(timeout=5), TypeError, r"timeout is a timedelta, not 5"),
        (lambda queue: queue.handler(backoff=5), TypeError, r"backoff is a callable .* not 5"),
        (lambda queue: queue.handler(concurrency=0), ValueError, r"concurrency lies between 1"),
        (lambda queue: queue.batch_handler(size=0), ValueError, r"size lies between 1"),
        (lambda queue: queue.handler(5), TypeError, r"a handler is a function, not 5"),
    ],
)
def test_a_call_with_what_cannot_be_meant_is_refused_and_does_nothing(queue, table, call, error, says):
    queue.enqueue("there")
    queue.claim()
    before = vars(table.row("there"))
    with pytest.raises(error, match=says):
        call(queue)
    assert table.stored() == ["there"]
    assert [vars(table.row("there"))[column] for column in ("lease_token", "available_at")] == [
        before[column] for column in ("lease_token", "available_at")
    ]


def test_a_second_handler_is_refused_naming_both(queue):
    @queue.handler
    def first(item):
        """The one."""

    with pytest.raises(ValueError, match=r"has a handler already, .*first; .*second"):

        @queue.handler
        def second(item):
            """The other."""


class Yields:
    def __call__(self, item):
        yield item


def yields(item, more=None):
    yield item


async def ayields(item):
    yield item


@pytest.mark.parametrize("decorate", ["handler", "batch_handler"])
@pytest.mark.parametrize("function", [yields, ayields, Yields(), functools.partial(yields, more=1)])
def test_a_handler_that_yields_is_refused_since_a_call_would_run_nothing(queue, function, decorate):
    with pytest.raises(TypeError, match="generator function"):
        getattr(queue, decorate)(function)
    assert not queue.source.handlers


def test_a_job_queue_and_a_keyed_queue_do_not_share_a_name(queue):
    from django_workqueue import JobQueue

    with pytest.raises(ValueError, match="it is a keyed Queue"):
        JobQueue(queue.name)
    with pytest.raises(ValueError, match="it is a keyed Queue"):
        JobQueue(queue.name, using="default")
