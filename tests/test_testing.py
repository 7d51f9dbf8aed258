"""`django_workqueue.testing`: what a project's own tests rely on."""

import asyncio
import itertools
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from django_workqueue import JobQueue, JobStatus, PartialFailure, PermanentError, Queue, Retry
from django_workqueue.testing import assert_enqueued, drain, immediate

HOUR = timedelta(hours=1)
_numbers = itertools.count()


def fresh() -> str:
    """A name for a queue of the test's own: test cases live on, and so do their queues."""
    return f"testing-{next(_numbers)}"


class DrainInATestCase(TestCase):
    def setUp(self):
        self.queue = Queue(fresh(), max_attempts=2)
        self.jobs = JobQueue(fresh(), max_attempts=2)
        self.ran = []

    def test_runs_what_was_enqueued_on_the_calling_thread(self):
        self.queue.handler(lambda item: self.ran.append(item.key))
        self.jobs.handler("kind")(lambda job: self.ran.append(job.payload))
        self.queue.enqueue("key")
        number = self.jobs.enqueue("kind", {"a": 1})
        counts = drain(self.queue, self.jobs)
        assert (counts.completed, counts.failed) == (2, 0)
        assert sorted(map(str, self.ran)) == ["key", "{'a': 1}"]
        assert self.jobs.get(number).status == JobStatus.COMPLETED

    def test_runs_async_handlers_and_keeps_their_results(self):
        @self.jobs.handler("kind")
        async def answer(job):
            return {"answer": job.payload * 2}

        number = self.jobs.enqueue("kind", 21)
        drain(self.jobs)
        assert self.jobs.get(number).result == {"answer": 42}

    def test_a_handler_that_breaks_the_database_breaks_only_its_savepoint(self):
        @self.queue.handler(backoff=lambda attempts: HOUR)
        def clash(item):
            Group.objects.create(name="same")
            Group.objects.create(name="same")

        self.queue.enqueue("key")
        counts = drain(self.queue)
        assert (counts.completed, counts.failed, counts.retried) == (0, 1, 1)
        assert not Group.objects.filter(name="same").exists()

    def test_leaves_delays_alone_unless_told(self):
        self.queue.handler(lambda item: self.ran.append(item.key))
        self.queue.enqueue("later", delay=HOUR)
        assert drain(self.queue).completed == 0
        assert drain(self.queue, ignore_delays=True).completed == 1

    def test_ignoring_delays_runs_attempts_to_their_end(self):
        @self.jobs.handler("kind", backoff=lambda attempts: HOUR)
        def fail(job):
            raise ValueError("no")

        number = self.jobs.enqueue("kind")
        counts = drain(self.jobs, ignore_delays=True)
        assert (counts.failed, counts.retried) == (2, 1)
        assert self.jobs.get(number).status == JobStatus.DEAD

    def test_an_endless_failure_and_a_retry_are_left_after_once(self):
        endless = Queue(fresh())
        tries = []

        @endless.handler(backoff=lambda attempts: HOUR)
        def never(item):
            tries.append(item.key)
            raise Retry(HOUR) if item.key == "snoozed" else ValueError("no")

        endless.enqueue("snoozed", "broken")
        drain(endless, ignore_delays=True)
        assert sorted(tries) == ["broken", "snoozed"]

    def test_runs_batches_and_fails_only_those_that_are_named(self):
        batches = []

        @self.queue.batch_handler(size=2, backoff=lambda attempts: HOUR)
        def work(items):
            batches.append(len(items))
            raise PartialFailure({item: PermanentError("no") for item in items if item.key == "b"})

        self.queue.enqueue("a", "b", "c")
        counts = drain(self.queue)
        assert batches == [2, 1]
        assert counts.failed == 1
        assert self.queue.stats().completed == 3

    def test_what_handlers_enqueue_is_run_too(self):
        @self.queue.handler
        def chain(item):
            self.ran.append(item.key)
            if item.key == "first":
                self.queue.enqueue("second")

        self.queue.enqueue("first")
        assert drain(self.queue).completed == 2
        assert self.ran == ["first", "second"]

    def test_something_that_enqueues_itself_for_ever_is_stopped(self):
        @self.queue.handler
        def again(item):
            self.queue.enqueue(item.key)

        self.queue.enqueue("key")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("django_workqueue.testing.MOST_RUNS", 20)
            with pytest.raises(AssertionError, match="enqueue itself"):
                drain(self.queue)

    def test_raises_a_handlers_error_where_it_is_asked_to_once_the_outcome_is_written(self):
        @self.jobs.handler("kind", backoff=lambda attempts: HOUR)
        def fail(job):
            self.ran.append(job.payload)
            raise Retry(HOUR) if job.payload == "later" else ValueError(job.payload)

        self.jobs.enqueue("kind", "later", priority=1)
        number = self.jobs.enqueue("kind", "no")
        with pytest.raises(ValueError, match="no"):
            drain(self.jobs, raise_errors=True)
        assert self.ran == ["later", "no"]
        assert self.jobs.get(number).errors[0]["message"] == "no"
        assert drain(self.jobs).failed == 0

    def test_raises_the_error_that_a_batch_handler_names_or_that_chains_from_a_permanent_one(self):
        @self.queue.batch_handler
        def work(items):
            raise PartialFailure({item: PermanentError("gone") for item in items if item.key == "b"})

        self.queue.enqueue("a", "b")
        with pytest.raises(PermanentError, match="gone"):
            drain(self.queue, raise_errors=True)
        assert self.queue.stats().completed == 2

    def test_an_exit_is_a_failure_of_its_item_alone_in_either_world(self):
        def leave(job):
            raise SystemExit(3) if job.payload == "exit" else asyncio.CancelledError

        @self.jobs.handler("async", backoff=lambda attempts: HOUR)
        async def aleave(job):
            leave(job)

        self.jobs.handler("sync", backoff=lambda attempts: HOUR)(leave)
        for kind in ("sync", "async"):
            self.jobs.enqueue_many(kind, ["exit", "cancel"])
        counts = drain(self.jobs)
        assert (counts.completed, counts.failed, counts.retried) == (0, 4, 4)

    def test_ctrl_c_and_what_ends_a_test_pass(self):
        @self.queue.handler
        def stop(item):
            raise KeyboardInterrupt if item.key == "ctrl-c" else pytest.fail.Exception("enough")

        self.queue.enqueue("ctrl-c", priority=1)
        with pytest.raises(KeyboardInterrupt):
            drain(self.queue)
        self.queue.enqueue("fail")
        with pytest.raises(pytest.fail.Exception):
            drain(self.queue)

    def test_a_queue_without_a_handler_is_refused(self):
        with pytest.raises(ValueError, match="no handler"):
            drain(Queue(fresh()))


class DrainInAnAsyncTest(TestCase):
    async def test_works_in_the_tests_own_transaction_where_it_is_called_as_sync_code_is(self):
        queue, ran = Queue(fresh()), []
        queue.handler(lambda item: ran.append(item.key))
        await queue.aenqueue("key")
        with pytest.raises(SynchronousOnlyOperation):
            drain(queue)
        await sync_to_async(assert_enqueued)(queue, "key")
        assert (await sync_to_async(drain)(queue)).completed == 1
        assert ran == ["key"]


class AssertEnqueued(TestCase):
    def test_finds_keys_in_the_inbox_and_in_the_set(self):
        queue = Queue(fresh(), key=int)
        queue.enqueue(7, priority=3, delay=HOUR)
        assert_enqueued(queue, 7, priority=3, delay=HOUR)
        queue.claim()
        assert_enqueued(queue, 7, priority=3)

    def test_a_queue_may_be_named(self):
        queue, jobs = Queue(fresh(), key=int), JobQueue(fresh())
        queue.enqueue(7, priority=3)
        jobs.enqueue("welcome", {"to": 1})
        assert_enqueued(queue.name, 7, priority=3)
        assert_enqueued(jobs.name, "welcome", payload={"to": 1}, count=1)
        with pytest.raises(AssertionError, match=f"8 is not enqueued on '{queue.name}'"):
            assert_enqueued(queue.name, 8)

    def test_a_name_that_no_queue_has_is_refused_with_those_there_are(self):
        queue = Queue(fresh())
        with pytest.raises(ValueError, match=f"no queue 'testing-none'. Those it has: .*'{queue.name}'"):
            assert_enqueued("testing-none", "key")

    def test_a_name_that_two_queues_have_is_refused(self):
        queue = Queue(fresh())
        other = Queue(queue.name, using="other")
        with pytest.raises(ValueError, match="on each of 'default', 'other'"):
            assert_enqueued(other.name, "key")

    def test_what_is_no_queue_is_refused(self):
        with pytest.raises(TypeError, match="expected a queue or its name, not 7"):
            assert_enqueued(7, "key")

    def test_says_what_is_there_instead(self):
        queue = Queue(fresh())
        queue.enqueue("key", priority=3)
        with pytest.raises(AssertionError, match="'other' is not enqueued on <Queue "):
            assert_enqueued(queue, "other")
        with pytest.raises(AssertionError, match=r"priority=4 is not enqueued .* key \(priority 3"):
            assert_enqueued(queue, "key", priority=4)

    def test_lists_a_few_of_what_is_enqueued_where_the_name_is_not(self):
        queue, jobs = Queue(fresh()), JobQueue(fresh())
        with pytest.raises(AssertionError, match=r"; nothing is enqueued there$"):
            assert_enqueued(queue, "other")
        queue.enqueue_many(f"key-{number:02}" for number in range(8))
        queue.complete(*queue.claim(1))
        queue.enqueue_many(f"later-{number:02}" for number in range(8))
        with pytest.raises(AssertionError, match=r"there is key-01 .*, later-02 .* and 5 more$") as refused:
            assert_enqueued(queue, "other")
        assert "key-00" not in str(refused.value)
        assert "later-03" not in str(refused.value)
        number = jobs.enqueue("welcome", {"to": 1})
        with pytest.raises(AssertionError, match=rf"but there is job {number} welcome .*'to': 1"):
            assert_enqueued(jobs, "newsletter")

    def test_compares_payloads_as_json_and_counts_jobs(self):
        jobs = JobQueue(fresh())
        jobs.enqueue_many("kind", [{"to": (1, 2)}, {"to": [3]}])
        assert len(assert_enqueued(jobs, "kind", count=2)) == 2
        assert_enqueued(jobs, "kind", payload={"to": [1, 2]}, count=1)
        with pytest.raises(AssertionError, match=r"2 times .* not 3"):
            assert_enqueued(jobs, "kind", count=3)

    def test_an_expectation_it_does_not_know_is_refused(self):
        queue = Queue(fresh())
        queue.enqueue("key")
        with pytest.raises(TypeError, match="'colour'"):
            assert_enqueued(queue, "key", colour="red")

    def test_what_was_rolled_back_is_not_there(self):
        queue = Queue(fresh())
        with transaction.atomic():
            queue.enqueue("key")
            transaction.set_rollback(True)
        with pytest.raises(AssertionError):
            assert_enqueued(queue, "key")


class Immediate(TestCase):
    def test_runs_at_once_also_what_handlers_enqueue(self):
        queue, ran = Queue(fresh()), []

        @queue.handler
        def chain(item):
            ran.append(item.key)
            if item.key == "first":
                queue.enqueue("second")

        with immediate():
            queue.enqueue("first")
            assert ran == ["first", "second"]
        queue.enqueue("third")
        assert ran == ["first", "second"]

    def test_raises_a_handlers_error_from_the_enqueue_where_it_is_asked_to(self):
        queue = Queue(fresh(), max_attempts=1)

        @queue.handler
        def fail(item):
            raise ValueError(item.key)

        with immediate():
            queue.enqueue("quiet")
        with immediate(raise_errors=True):
            with pytest.raises(ValueError, match="loud"):
                queue.enqueue("loud")
            with pytest.raises(ValueError, match="again"):
                queue.enqueue("again")
        assert queue.stats().stalled == 3

    def test_is_a_decorator(self):
        queue, ran = Queue(fresh()), []
        queue.handler(lambda item: ran.append(item.key))
        immediate()(lambda: queue.enqueue("key"))()
        assert ran == ["key"]

    def test_leaves_a_queue_without_a_handler_alone(self):
        queue = Queue(fresh())
        with immediate():
            queue.enqueue("key")
        assert_enqueued(queue, "key")

    async def test_runs_what_coroutines_enqueue(self):
        queue, ran = Queue(fresh()), []
        queue.handler(lambda item: ran.append(item.key))
        with immediate():
            await queue.aenqueue("key")
        assert ran == ["key"]


class DrainOutsideATransaction(TransactionTestCase):
    def test_drains_and_commits(self):
        queue, ran = Queue(fresh()), []
        queue.handler(lambda item: ran.append(item.key))
        queue.enqueue("a", "b")
        assert drain(queue).completed == 2
        assert sorted(ran) == ["a", "b"]
