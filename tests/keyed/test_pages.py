"""The examples of the how-to on keys, run as they are printed there."""

import datetime as dt
import inspect
import re
import threading
import types
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import cache, caches
from django.utils import timezone

from django_workqueue import Queue
from django_workqueue.models import WorkItem
from django_workqueue.worker import Counts, Worker
from tests import pages
from tests.interleave import aside
from tests.keyed.table import Table

PAGE = "how-to/keys.md"
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def page(second: Any) -> Iterator[Any]:
    """What the page defines; nothing is left of its queues."""
    made = types.SimpleNamespace(**pages.run(PAGE))
    cache.clear()
    yield made
    made.prices.resume()
    for queue in vars(made).values():
        if isinstance(queue, Queue):
            Table(second, queue.name).clear()


def test_what_the_page_enqueues_is_worked(page):
    page.price_changed("de", 1)
    page.price_changed("de", 1)
    page.campaign_begins("fr", [2, 3])
    page.campaign_ends("fr", [4], 2)
    page.import_catalogue([{"country": "it", "product": 5, "sold": 7}])
    async_to_sync(page.price_changed_view)("de", 6)
    stats = page.prices.stats()
    assert (stats.ready, stats.scheduled) == (4, 2)
    assert Worker([page.prices]).drain() == Counts(completed=4)
    worked = {f"price-{key}" for key in ("de-1", "fr-2", "fr-3", "de-6")}
    assert set(cache.get_many([*worked, "price-fr-4", "price-it-5"])) == worked


@pytest.mark.parametrize(
    ("queue", "key", "text"),
    [
        ("accounts", "ada", "ada"),
        ("documents", uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        ("stock", ("berlin", 7), '["berlin",7]'),
        ("days", dt.date(2024, 2, 29), "2024-02-29"),
    ],
)
def test_keys_are_stored_as_the_page_says_and_come_back(page, queue, key, text):
    named = getattr(page, queue)
    named.enqueue(key)
    (item,) = named.claim()
    assert (item.key, named.source.settings.key.encode(key)) == (key, text)


def test_an_enum_and_a_dataclass_are_stored_as_the_page_says(page):
    assert page.reports.source.settings.key.encode(page.Report.SALES) == "sales"
    assert page.prices.source.settings.key.encode(page.Offer("de", 7)) == '["de",7]'


def test_what_goes_wrong_goes_as_the_page_says(page):
    page.feeds.enqueue(1, 2, 3, 4)
    assert Worker([page.feeds]).drain() == Counts(completed=1, failed=2, retried=1)
    stats = page.feeds.stats()
    assert (stats.completed, stats.scheduled, stats.stalled) == (2, 2, 0)


def test_an_item_out_of_attempts_is_stalled_and_revived_by_an_enqueue(page):
    page.feeds.enqueue(4)
    for _ in range(5):
        (item,) = page.feeds.claim()
        page.feeds.release(item)
    assert (page.feeds.claim(), page.feeds.stats().stalled) == ([], 1)
    page.feeds.enqueue(4)
    assert [item.attempts for item in page.feeds.claim()] == [1]


def test_what_comes_round_asks_for_itself_whatever_becomes_of_a_run(page, second, monkeypatch):
    def fail(*args: Any) -> None:
        raise OSError("no cache")

    def run() -> tuple[Counts, bool]:
        """Now; what came of it, and whether it comes round in an hour."""
        second.execute("UPDATE workqueue_item SET available_at = now() - interval '1 s' WHERE queue = 'digests'")
        counts = Worker([page.digests]).drain()
        (row,) = WorkItem.objects.filter(queue="digests")
        return counts, HOUR / 2 < row.available_at - timezone.now() <= HOUR

    page.digests.enqueue("ada")
    assert run() == (Counts(completed=1), True)
    assert cache.get("digest-ada") == "of the last hour"
    with monkeypatch.context() as patch:
        patch.setattr(type(caches["default"]), "set", fail)
        assert [run() for _ in range(3)] == [
            (Counts(failed=1, retried=1), False),
            (Counts(failed=1, retried=1), False),
            (Counts(failed=1, retried=1), True),
        ]
    assert run() == (Counts(completed=1), True)
    assert page.digests.remove("ada") == 1


def test_a_batch_fails_only_those_that_it_names(page):
    page.ratings.enqueue(1, 2, -3)
    assert Worker([page.ratings]).drain() == Counts(completed=2, failed=1, retried=1)
    assert set(cache.get_many([f"rating-{key}" for key in (1, 2, -3)])) == {"rating-1", "rating-2"}


def test_the_pages_work_by_hand_completes_and_releases(page, monkeypatch, wait_until):
    def picky(item):
        if item.key.product == 2:
            raise ValueError("no price")

    monkeypatch.setitem(page.work_off.__globals__, "recompute", picky)
    page.campaign_begins("de", [1, 2])
    stop = threading.Event()
    done = aside(page.work_off, stop)
    wait_until(lambda: done.done() or page.prices.stats().completed == 1)
    stop.set()
    done.result(timeout=20)
    assert page.prices.stats().scheduled == 1


def test_a_lease_is_extended_from_step_to_step_until_it_is_lost(page):
    seen = []
    page.price_changed("de", 1)
    page.follow([seen.append, seen.append])
    assert (seen, page.prices.stats().completed) == ([page.Offer("de", 1)] * 2, 1)
    page.price_changed("de", 2)
    page.follow([lambda key: page.prices.release(key, delay=HOUR), seen.append])
    assert (len(seen), page.prices.stats().completed) == (2, 1)


def test_the_page_looks_steers_and_removes(page):
    page.price_changed("de", 1)
    page.with_prices_frozen(lambda: page.prices.claim() == [] or pytest.fail("claimed while frozen"))
    assert not page.prices.is_paused()
    assert page.is_behind() is False
    page.take_off_the_market("de", 1)
    assert page.prices.stats().pending == 0


def test_the_table_lists_each_setting_of_a_queue():
    section = pages.text(PAGE).partition("## What a queue can be told")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert {*listed, "self", "name", "key"} == set(inspect.signature(Queue.__init__).parameters)
