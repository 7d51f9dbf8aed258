"""A database that was not migrated yet: everybody who meets it says which, and what to run."""

import asyncio
import copy
import io
import traceback

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connections, transaction
from django.test import RequestFactory
from django.urls import resolve

from django_workqueue import JobQueue, Queue, history, inventory, partitions, unmigrated
from django_workqueue.admin.pages import url
from django_workqueue.browsing import Filters, ItemBrowser, JobBrowser
from django_workqueue.doctor.asking import Server
from django_workqueue.prometheus import collector
from django_workqueue.sql import doctor as questions
from django_workqueue.sql import exports
from django_workqueue.worker import Counts, Unavailable, Worker
from tests.interleave import wait_until
from tests.worker.conftest import Running

SENTENCE = "Database 'bare' has no tables of django_workqueue yet. Run `manage.py migrate --database bare`."


@pytest.fixture
def bare(django_db_setup, django_db_blocker):
    """An alias on which none of our tables is to be seen: it has a schema of its own, which is empty."""
    settings = connections.settings["bare"] = copy.deepcopy(connections.settings["default"])
    settings["OPTIONS"] = {"options": "-c search_path=bare"}
    with django_db_blocker.unblock():
        execute("CREATE SCHEMA bare")
        yield
        connections["bare"].close()
        execute("DROP SCHEMA bare CASCADE")
        connections["default"].close()
    del connections["bare"]
    del connections.settings["bare"]


def execute(sql):
    with connections["default"].cursor() as cursor:
        cursor.execute(sql)


def test_the_command_names_every_alias_but_the_default():
    assert unmigrated.command("default") == "manage.py migrate"
    assert unmigrated.command("queue") == "manage.py migrate --database queue"


def inside(enqueue):
    with transaction.atomic(using="bare"):
        enqueue()


@pytest.mark.parametrize("how", [lambda enqueue: enqueue(), inside])
@pytest.mark.parametrize(
    "enqueue",
    [
        lambda: Queue("unmigrated", using="bare").enqueue("a"),
        lambda: JobQueue("unmigrated-jobs", using="bare").enqueue("a"),
        lambda: asyncio.run(JobQueue("unmigrated-jobs", using="bare").aenqueue("a")),
    ],
)
def test_an_enqueue_raises_what_the_database_does_with_a_hint(bare, how, enqueue):
    with pytest.raises(ProgrammingError, match="does not exist") as caught:
        how(enqueue)
    assert caught.value.__notes__ == [SENTENCE]
    assert traceback.format_exception(caught.value)[-1].strip() == SENTENCE


def test_so_do_the_methods_by_hand(bare):
    queue = Queue("unmigrated", using="bare")
    for call in (queue.claim, queue.stats, queue.pause, queue.reap, lambda: queue.remove("a")):
        with pytest.raises(ProgrammingError) as caught:
            call()
        assert caught.value.__notes__ == [SENTENCE]


@pytest.mark.parametrize(
    "read",
    [
        lambda: inventory.queues(using="bare"),
        lambda: ItemBrowser("bare").arriving(Filters()),
        lambda: JobBrowser("bare").page(Filters()),
        lambda: history.history("bare", history.HOUR),
        lambda: history.workers("bare"),
        lambda: Server("bare").ask(questions.WORKERS),
        lambda: collector._ask("bare", exports.WORKERS),
        lambda: partitions.create("hot", "items", "bare"),
        lambda: partitions.to_create("hot", using="bare"),
        lambda: partitions.stall("hot", "items", "bare"),
    ],
)
def test_so_does_all_that_only_looks_or_moves_rows(bare, read):
    with pytest.raises(ProgrammingError) as caught:
        read()
    assert caught.value.__notes__ == [SENTENCE]


PAGES = ["dashboard", "queuerecord_changelist", "workerrecord_changelist", "workjob_changelist", "items_changelist"]


@pytest.mark.parametrize(
    "there",
    [
        *(url("admin", page) for page in PAGES),
        url("admin", "queuerecord_detail", name="q"),
        url("admin", "workjob_change", 5),
        url("admin", "workjob_changelist", id=5),
        url("admin", "items_detail", queue="q", key="a"),
        url("admin", "items_enqueue"),
    ],
)
def test_so_does_every_page_of_the_admin(bare, settings, there):
    settings.WORKQUEUE_DATABASE = "bare"
    request = RequestFactory().get(there)
    request.user = User(is_staff=True, is_active=True, is_superuser=True)
    view, arguments, options = resolve(request.path)
    with pytest.raises(ProgrammingError) as caught:
        view(request, *arguments, **options)
    assert caught.value.__notes__ == [SENTENCE]


@pytest.mark.parametrize(
    "arguments",
    [
        ["workqueue_stats", "--database", "bare"],
        ["workqueue_stats", "--database", "bare", "--exact"],
        ["workqueue_reap", "--database", "bare"],
        ["workqueue_partition", "--database", "bare", "list"],
        ["workqueue_partition", "--database", "bare", "create", "hot"],
    ],
)
def test_every_command_says_so_in_the_same_words(bare, arguments):
    with pytest.raises(CommandError) as caught:
        call_command(*arguments, stdout=io.StringIO())
    assert str(caught.value) == SENTENCE


def test_a_drain_ends_at_once_and_says_so(bare):
    queue = Queue("unmigrated-drain", using="bare")
    queue.handler(lambda item: None)
    with pytest.raises(Unavailable, match=r"'bare' has no tables .*: run `manage\.py migrate --database bare`\. Until"):
        Worker([queue]).drain()


def test_a_worker_says_so_and_works_once_the_tables_are_there(bare, caplog):
    queue, ran = Queue("unmigrated-at-first", using="bare"), []
    queue.handler(lambda item: ran.append(item.key))
    running = Running(queue, poll=0.1)
    try:
        said = "has no tables of django_workqueue yet"
        wait_until(lambda: said in caplog.text)
        assert running.thread.is_alive()
        call_command("migrate", "workqueue", database="bare", verbosity=0)
        queue.enqueue("a")
        wait_until(lambda: ran == ["a"], 20)
        assert caplog.text.count(said) == 1
        assert "run `manage.py migrate --database bare`" in caplog.text
    finally:
        running.stop()
    assert running.counts == Counts(completed=1)
