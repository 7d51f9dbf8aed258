"""How many queries a page takes does not depend on how many rows there are, and none of them counts the table."""

import math
import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_workqueue import dashboard
from tests.admin import scene
from tests.admin.conftest import address

pytestmark = pytest.mark.django_db


JOB_STATES = ("ready", "scheduled", "leased", "dead", "completed")
ITEM_STATES = ("ready", "leased", "stalled", "completed", "arriving")


def pages():
    return [
        address("dashboard"),
        address("queuerecord_changelist"),
        address("queuerecord_detail", name="mails"),
        address("workerrecord_changelist"),
        address("workjob_changelist"),
        *(
            address("workjob_changelist", state=state)
            for state in ("ready", "scheduled", "leased", "dead", "completed")
        ),
        address("workjob_changelist", payload='{"order": 1}', kind="mail.invoice", queue="mails", age="d1"),
        address("items_changelist"),
        address("items_changelist", key="product-0"),
        *(
            address("items_changelist", state=state)
            for state in ("ready", "leased", "stalled", "completed", "arriving")
        ),
    ]


def queries(client, page):
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert client.get(page).status_code == 200
    return [query["sql"] for query in captured.captured_queries]


def test_the_number_of_queries_does_not_depend_on_rows(admin_client, monkeypatch):
    monkeypatch.setattr(dashboard, "BUDGET", math.inf)  # or it depends on how quick the machine is
    few = {"ready": 2, "leased": 2, "scheduled": 2, "stalled": 2, "completed": 2}
    scene.items("products", **few)
    scene.jobs("mails", **few)
    admin_client.get("/admin/")  # content types and the like are remembered from here on
    before = {page: len(queries(admin_client, page)) for page in pages()}
    many = {"ready": 90, "leased": 90, "scheduled": 90, "stalled": 90, "completed": 90}
    scene.items("products", prefix="more-", **many)
    scene.jobs("mails", **many)
    scene.past("mails", minutes=60)
    for position in range(20):
        scene.worker(f"web-{position}", ["mails"])
    after = {page: len(queries(admin_client, page)) for page in pages()}
    assert after == before


def test_no_page_counts_a_table_or_sorts_out_its_duplicates(admin_client):
    scene.whole()
    for page in pages():
        for sql in queries(admin_client, page):
            if "workqueue_" in sql:
                assert not re.search(r"count\(\*\) from \"?workqueue_(item|job)\"?\s*$", sql, re.IGNORECASE), page
                assert "select distinct" not in sql.lower(), page


def test_what_takes_the_server_too_long_is_said_not_waited_for(admin_client, monkeypatch):
    from datetime import timedelta

    from django_workqueue import browsing

    monkeypatch.setattr(browsing, "PATIENCE", timedelta(0))
    scene.jobs("mails", ready=2000, completed=5000)
    answer = admin_client.get(address("workjob_changelist", payload='{"none": 1}'))
    assert answer.status_code == 200
    if answer.context["too_long"]:
        assert "took too long" in answer.content.decode()


def walk(browser, filters, limit):
    after, found = None, []
    for _ in range(1000):
        page = browser.page(filters, after, limit=limit)
        found += [(row.queue, row.ident) for row in page.rows]
        if page.next is None:
            return found
        after = page.next
    raise AssertionError("the pages do not end")


@pytest.mark.parametrize("limit", [1, 7, 1000])
@pytest.mark.parametrize("look", [1, 13, 10_000])
def test_pages_show_each_row_once_whatever_their_size_and_however_little_is_looked_at(monkeypatch, limit, look):
    from django_workqueue import browsing
    from django_workqueue.browsing import Filters, ItemBrowser, JobBrowser

    monkeypatch.setattr(browsing, "LOOK", look)
    monkeypatch.setattr(browsing, "LEAST", look)
    many = {"ready": 25, "leased": 11, "scheduled": 12, "stalled": 13, "completed": 14}
    for queue in ("a", "b"):
        scene.items(f"items-{queue}", prefix="product-", **many)
        scene.jobs(f"jobs-{queue}", **many)
    counts = {"ready": 50, "leased": 22, "scheduled": 24, "stalled": 26, "dead": 26, "completed": 28, "cancelled": 6}
    for browser in (ItemBrowser("default"), JobBrowser("default")):
        for state in browser.states:
            found = walk(browser, Filters(state=state), limit)
            assert len(found) == len(set(found)) == counts[state], (browser, state)
        everything = walk(browser, Filters(), limit)
        assert len(everything) == len(set(everything)) == 150 + (6 if isinstance(browser, JobBrowser) else 0)
    some = walk(JobBrowser("default"), Filters(kind="mail.invoice", state="ready"), limit)
    assert 10 < len(some) < 25
    begun = walk(ItemBrowser("default"), Filters(prefix="product-00001"), limit)
    assert len(begun) == 20
