"""The examples of the how-tos on jobs, transactions and middleware, run as they are printed there."""

import asyncio
import logging
import sys
import types
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core import mail
from django.db import OperationalError, transaction
from django.test import override_settings
from django.utils import timezone, translation

from django_workqueue import JobQueue, JobStatus, Queue
from django_workqueue.testing import drain
from django_workqueue.worker import Counts, Worker
from tests import pages
from tests.keyed.table import Table
from tests.keyed.test_transactions import undone


class StatusError(Exception):
    def __init__(self, status):
        self.response = types.SimpleNamespace(status_code=status)


@pytest.fixture
def posted(monkeypatch):
    """An `httpx` that answers with the status that the payload asks for; what was posted."""
    posted = []

    def post(url, json):
        posted.append(json)
        status = json["status"]

        def raise_for_status():
            if status >= 400:
                raise StatusError(status)

        return types.SimpleNamespace(raise_for_status=raise_for_status)

    monkeypatch.setitem(sys.modules, "httpx", types.SimpleNamespace(post=post, HTTPStatusError=StatusError))
    return posted


@pytest.fixture
def cleared(second):
    """Nothing is left of the pages' queues."""
    yield
    for queue in ("mail", "profiles"):
        Table(second, queue).clear()


# Jobs


@pytest.fixture
def jobs(posted, cleared, settings):
    settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}  # Django 6.1
    return types.SimpleNamespace(**pages.run("how-to/jobs.md"))


def test_what_the_page_enqueues_is_sent_and_its_outcome_is_there(jobs):
    first = jobs.greet("ada@example.org")
    many = jobs.greet_all(["bob@example.org", "cy@example.org"])
    later = jobs.greet_tomorrow("dan@example.org")
    assert Worker([jobs.mail]).drain() == Counts(completed=3)
    assert sorted(message.to for message in mail.outbox) == [
        ["ada@example.org"],
        ["bob@example.org"],
        ["cy@example.org"],
    ]
    assert [jobs.outcome(number) for number in (first, *many)] == [(JobStatus.COMPLETED, 1, [])] * 3
    assert jobs.mail.get(later).available_at > timezone.now() + timedelta(hours=23)
    assert (jobs.mail.get(first).max_attempts, jobs.mail.get(later).max_attempts) == (8, 3)


def test_what_goes_wrong_goes_as_the_page_says(jobs, posted):
    number = {status: jobs.mail.enqueue("newsletter", {"status": status}) for status in (200, 429, 410, 500)}
    assert Worker([jobs.mail]).drain() == Counts(completed=1, failed=2, retried=1)
    rows = {status: jobs.mail.get(each) for status, each in number.items()}
    assert [row.status for row in rows.values()] == ["completed", "pending", "dead", "pending"]
    assert [row.attempts for row in rows.values()] == [1, 0, 1, 1]
    assert timedelta(minutes=4) < rows[500].available_at - timezone.now() < timedelta(minutes=5)
    jobs.tidy_up(number[500], number[410])
    assert [jobs.mail.get(number[status]).status for status in (500, 410)] == ["cancelled", "pending"]


def test_the_export_of_the_page_ends_by_itself(jobs):
    number = jobs.mail.enqueue("export", {"parts": 4})
    assert Worker([jobs.mail]).drain() == Counts(completed=1)
    assert jobs.mail.get(number).result == 6


def test_the_pages_work_by_hand_completes_and_fails(jobs):
    good, bad = jobs.greet("ada@example.org"), jobs.mail.enqueue("welcome", {})
    jobs.work_off()
    assert [jobs.mail.get(number).status for number in (good, bad)] == ["completed", "pending"]
    assert jobs.mail.get(bad).last_error == "KeyError: 'to'"


# Transactions


@pytest.fixture
def transactions(cleared, db):
    yield types.SimpleNamespace(**pages.run("how-to/transactions.md"))
    User.objects.all().delete()


def test_user_key_and_job_are_there_together_or_not_at_all(transactions):
    with undone():
        transactions.register("undone", "undone@example.org")
    assert Queue("profiles", key=int).claim() == []
    assert JobQueue("mail", max_attempts=8).claim() == []
    user = transactions.register("ada", "ada@example.org")
    assert [item.key for item in transactions.profiles.claim()] == [user.pk]
    assert [job.payload for job in transactions.mail.claim()] == [{"to": "ada@example.org"}]


def test_the_import_keeps_what_its_savepoints_kept(transactions, monkeypatch):
    create = User.objects.create

    def picky(username, email):
        user = create(username=username, email=email)
        if username == "bad":
            raise ValueError(username)
        return user

    monkeypatch.setattr(User.objects, "create", picky)
    transactions.import_all([{"name": name, "address": f"{name}@example.org"} for name in ("a", "bad", "c")])
    assert [job.payload["to"] for job in transactions.mail.claim()] == ["a@example.org", "c@example.org"]
    assert len(transactions.profiles.claim()) == 2


def test_the_test_of_the_page_passes_in_a_transaction(transactions):
    with transaction.atomic():
        transactions.check_registration()
        transaction.set_rollback(True)


# Middleware


@pytest.fixture
def middleware(monkeypatch, cleared):
    """The page's, importable as `shop.middleware`."""
    module = types.ModuleType("shop.middleware")
    vars(module).update(pages.run("how-to/middleware.md"))
    monkeypatch.setitem(sys.modules, "shop", types.ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.middleware", module)
    return module


def test_the_setting_of_the_page_logs_how_long_handlers_took(middleware, make_queue, caplog):
    queue = make_queue()

    @queue.handler("work")
    def work(job): ...

    queue.enqueue("work")
    with override_settings(WORKQUEUE_MIDDLEWARE=middleware.WORKQUEUE_MIDDLEWARE), caplog.at_level(logging.INFO, "work"):
        assert drain(queue) == Counts(completed=1)
    assert "work took 0." in caplog.text


def test_the_warehouse_is_waited_for(middleware, make_queue):
    queue = make_queue(max_attempts=1)

    @queue.handler("work")
    def work(job):
        raise OperationalError("gone")

    number = queue.enqueue("work")
    with override_settings(WORKQUEUE_MIDDLEWARE=["shop.middleware.wait_for_the_warehouse"]):
        assert Worker([queue]).drain() == Counts()
    row = queue.get(number)
    assert (row.status, row.attempts) == (JobStatus.PENDING, 0)
    assert row.available_at > timezone.now() + timedelta(seconds=30)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_customers_language_is_spoken_in_either_world(middleware, make_queue, is_async):
    queue = make_queue()

    def work(job):
        return translation.get_language()

    async def awork(job):
        await asyncio.sleep(0)
        return translation.get_language()

    queue.handler("work")(awork if is_async else work)
    german, other = queue.enqueue("work", {"language": "de"}), queue.enqueue("work")
    with override_settings(WORKQUEUE_MIDDLEWARE=["shop.middleware.speak_the_customers_language"]):
        assert Worker([queue]).drain() == Counts(completed=2)
    assert [queue.get(number).result for number in (german, other)] == ["de", "en"]
    assert async_to_sync(queue.aget)(german).result == "de"
