"""The admin in a real browser: each page in both colour schemes, wide and on a phone; each kind of deed by clicking.

`WORKQUEUE_PICTURES=docs/images pytest tests/admin/test_browser.py` takes the pictures of the documentation.
"""

import os
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from django_workqueue.models import QueueRecord, WorkItem, WorkJob
from tests.admin import browser as eyes
from tests.admin import scene
from tests.admin.conftest import address

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def chromium():
    with eyes.chromium() as opened:
        yield opened


@pytest.fixture
def seen(chromium, live_server):
    """`seen(path)`: the page, as a superuser sees it."""
    user = User.objects.create_superuser("ada", "ada@example.org", "-")
    client = Client()
    client.force_login(user)
    chromium.get(live_server.url + "/admin/login/")
    chromium.delete_all_cookies()
    chromium.add_cookie({"name": "sessionid", "value": client.cookies["sessionid"].value, "path": "/"})
    eyes.look(chromium, "light", "wide")
    chromium.get_log("browser")

    def see(path):
        chromium.get(live_server.url + path)
        return chromium

    return see


@pytest.fixture
def pictures(tmp_path) -> Path:
    return Path(os.environ.get("WORKQUEUE_PICTURES") or tmp_path)


def pages():
    dead = WorkJob.objects.filter(outcome="dead").order_by("id")[0]
    return {
        "index": "/admin/",
        "app": "/admin/workqueue/",
        "dashboard": address("dashboard", span="1h"),
        "jobs": address("workjob_changelist", state="dead"),
        "job": address("workjob_change", dead.id),
        "items": address("items_changelist", queue="products"),
        "item": address("items_detail", queue="products", key=WorkItem.objects.filter(stalled_at__isnull=False)[0].key),
        "enqueue": address("items_enqueue", queue="products"),
        "queues": address("queuerecord_changelist"),
        "queue": address("queuerecord_detail", name="mails", span="24h"),
        "workers": address("workerrecord_changelist"),
    }


@pytest.mark.parametrize("width", eyes.WIDTHS)
@pytest.mark.parametrize("scheme", eyes.SCHEMES)
def test_each_page_is_seen_without_a_fault(seen, pictures, scheme, width):
    scene.whole()
    faults = {}
    for name, path in pages().items():
        browser = seen(path)
        eyes.look(browser, scheme, width)
        browser = seen(path)
        ours = name not in ("index", "app")  # Django's own pages are there to see the links
        found = [*(eyes.faults(browser) if ours else []), *eyes.complaints(browser)]
        if wide := eyes.overflow(browser):
            found.append(f"{wide} pixels too wide")
        if found:
            faults[name] = found
        eyes.photograph(browser, str(pictures / f"admin-{name}-{scheme}-{width}.png"))
    assert not faults


def wait(browser, condition):
    return WebDriverWait(browser, 10).until(condition)


def confirm(browser):
    wait(browser, lambda it: it.find_elements(By.NAME, "confirmed"))
    assert not eyes.faults(browser)
    browser.find_element(By.CSS_SELECTOR, ".wq-confirm button[type=submit]").click()
    wait(browser, lambda it: it.find_elements(By.CSS_SELECTOR, ".messagelist"))
    return browser.find_element(By.CSS_SELECTOR, ".messagelist").text


@pytest.mark.parametrize(
    ("verb", "state", "outcome"),
    [
        ("retry", "dead", None),
        ("hurry", "scheduled", None),
        ("cancel", "ready", "cancelled"),
        ("priority", "ready", None),
    ],
)
def test_jobs_are_ticked_and_steered(seen, verb, state, outcome):
    scene.jobs("mails", ready=3, scheduled=3, stalled=3)
    browser = seen(address("workjob_changelist", state=state))
    browser.find_element(By.CSS_SELECTOR, "input[data-wq-ticks]").click()
    ticked = browser.find_elements(By.CSS_SELECTOR, "input[name=select]:checked")
    assert len(ticked) == 3
    Select(browser.find_element(By.NAME, "verb")).select_by_value(verb)
    browser.find_element(By.CSS_SELECTOR, ".wq-actions button[type=submit]").click()
    if verb == "priority":
        wait(browser, lambda it: it.find_elements(By.NAME, "priority"))
        browser.find_element(By.NAME, "priority").send_keys("5")  # behind the 0 that is there
    assert "3" in confirm(browser)
    assert not eyes.complaints(browser)
    if outcome:
        assert WorkJob.objects.filter(outcome=outcome).count() == 3 + 3


def test_all_jobs_that_match_are_deleted(seen):
    scene.jobs("mails", ready=130, stalled=3)
    browser = seen(address("workjob_changelist", state="ready"))
    Select(browser.find_element(By.NAME, "verb")).select_by_value("delete")
    browser.find_element(By.CSS_SELECTOR, "input[name=scope][value=all]").click()
    browser.find_element(By.CSS_SELECTOR, ".wq-actions button[type=submit]").click()
    assert "130" in confirm(browser)
    assert WorkJob.objects.count() == 6


@pytest.mark.parametrize("verb", ["release", "complete", "revive", "priority", "remove"])
def test_an_item_is_steered_from_its_page(seen, verb):
    scene.items("products", ready=1, leased=1, stalled=1)
    key = {"release": "product-000002", "complete": "product-000002", "revive": "product-000003"}.get(
        verb, "product-000001"
    )
    browser = seen(address("items_detail", queue="products", key=key))
    browser.find_element(By.CSS_SELECTOR, f"button[name=verb][value={verb}]").click()
    if verb == "priority":
        wait(browser, lambda it: it.find_elements(By.NAME, "priority"))
        field = browser.find_element(By.NAME, "priority")
        field.clear()
        field.send_keys("5")
    assert "1" in confirm(browser)
    assert WorkItem.objects.filter(key=key).exists() == (verb != "remove")


def test_a_key_is_enqueued_by_hand(seen):
    scene.items("products", ready=1)
    browser = seen(address("items_changelist", queue="products"))
    browser.find_element(By.CSS_SELECTOR, ".object-tools a").click()
    wait(browser, lambda it: it.find_elements(By.NAME, "key"))
    browser.find_element(By.NAME, "key").send_keys("by hand")
    browser.find_element(By.CSS_SELECTOR, "#content-main button[type=submit]").click()
    wait(browser, lambda it: it.find_elements(By.CSS_SELECTOR, ".messagelist"))
    assert WorkItem.objects.filter(key="by hand").exists()


@pytest.mark.parametrize("lever", ["pause", "resume", "retry", "purge", "partition", "unpartition"])
def test_each_lever_of_a_queue_is_pulled(seen, lever):
    from django_workqueue import partitions

    scene.jobs("mails", ready=2, stalled=2)
    scene.record("mails", "jobs", paused=lever == "resume")
    if lever == "unpartition":
        partitions.create("mails", "jobs")
    try:
        browser = seen(address("queuerecord_detail", name="mails"))
        browser.find_element(By.CSS_SELECTOR, f"form:has(input[name=verb][value={lever}]) button[type=submit]").click()
        assert confirm(browser)
        assert (QueueRecord.objects.get(name="mails").paused_at is not None) == (lever == "pause")
        assert any(each.queue == "mails" for each in partitions.partitions()) == (lever == "partition")
        assert WorkJob.objects.filter(outcome="dead").count() == (0 if lever == "retry" else 2)
        assert WorkJob.objects.filter(outcome=None).count() == {"retry": 4, "purge": 0}.get(lever, 2)
    finally:
        if any(each.queue == "mails" for each in partitions.partitions()):
            partitions.drop("mails", "jobs")


def test_the_dashboard_refreshes_itself_and_stays_where_it_was(seen):
    scene.whole()
    browser = seen(address("dashboard"))
    browser.execute_script("document.getElementById('wq-live').dataset.old = 'yes'")
    browser.execute_script("document.querySelector('details').open = true; window.scrollTo(0, 300)")
    scene.jobs("newcomers", ready=1)
    wait(browser, lambda it: "newcomers" in it.find_element(By.ID, "wq-live").text)
    assert browser.execute_script("return document.getElementById('wq-live').dataset.old") is None
    assert browser.execute_script("return window.scrollY") == 300
    assert browser.execute_script("return document.querySelector('details').open")
    assert not eyes.complaints(browser)


def test_the_refreshing_can_be_stopped(seen):
    scene.jobs("mails", ready=1)
    browser = seen(address("dashboard"))
    button = browser.find_element(By.CSS_SELECTOR, ".wq-now button")
    button.click()
    assert button.text == "Refresh by itself"


def test_everything_can_be_done_without_a_script(seen):
    scene.jobs("mails", ready=2)
    browser = seen("/admin/")
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser = seen(address("dashboard"))
        assert browser.find_element(By.LINK_TEXT, "Refresh").is_displayed()
        assert not browser.find_elements(By.CSS_SELECTOR, ".wq-now button")
        browser = seen(address("workjob_changelist", state="ready"))
        browser.find_element(By.CSS_SELECTOR, "input[name=select]").click()
        Select(browser.find_element(By.NAME, "verb")).select_by_value("cancel")
        browser.find_element(By.CSS_SELECTOR, ".wq-actions button[type=submit]").click()
        wait(browser, lambda it: it.find_elements(By.NAME, "confirmed"))
        browser.find_element(By.CSS_SELECTOR, ".wq-confirm button[type=submit]").click()
        wait(browser, lambda it: it.find_elements(By.CSS_SELECTOR, ".messagelist"))
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert WorkJob.objects.filter(outcome="cancelled").count() == 4


def test_hostile_text_runs_nowhere(seen):
    from tests.admin.test_hostile import fill, places

    fill()
    for path in places():
        browser = seen(path)
        assert browser.execute_script("return window.harm") is None
        assert not browser.find_elements(By.CSS_SELECTOR, "#content img, #content script, #content iframe, #content b")
        assert not eyes.complaints(browser)
