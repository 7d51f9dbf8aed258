"""The demo's pages in a real browser, under a strict policy: how they look, and that the activity page is live."""

import pytest
from django.conf import settings as project
from django.db import connection
from django.urls import reverse
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import testproject.tiles.tasks  # noqa: F401 - the handlers
from django_workqueue import Worker, notify
from testproject.tiles import postman, stream
from testproject.tiles.demo.webserver import WebServer
from testproject.tiles.queues import letters
from tests.admin import browser as eyes
from tests.admin.policy import POLICY

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(300),
]


def everywhere(get_response):
    """Middleware: the policy, on every page."""

    def middleware(request):
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return middleware


@pytest.fixture(scope="module")
def chromium():
    with eyes.chromium() as opened:
        yield opened
        opened.get("about:blank")


@pytest.fixture
def seen(chromium, settings):
    """`seen(name)`: one of the demo's pages."""
    settings.MIDDLEWARE = [*project.MIDDLEWARE, f"{__name__}.everywhere"]
    with WebServer(0) as server:
        chromium.get(server.url)
        chromium.get_log("browser")

        def see(name):
            chromium.get(server.url.rstrip("/") + reverse(f"tiles:{name}"))
            return chromium

        yield see
        chromium.get("about:blank")
    assert notify.close(10)


def once(browser, condition):
    """Wait until it holds; meanwhile the page may be another, or be replaced in part."""
    meanwhile = (NoSuchElementException, StaleElementReferenceException)
    waiting = WebDriverWait(browser, 10, poll_frequency=0.05, ignored_exceptions=meanwhile)
    return waiting.until(lambda _: condition())


def is_live(browser):
    return browser.find_element(By.ID, "link").text == "live"


def lines(browser):
    return [line.text for line in browser.find_elements(By.CSS_SELECTOR, ".events b")]


def count(browser, what):
    return int(browser.find_element(By.CSS_SELECTOR, f"[data-count={what}]").text)


def example(browser, address):
    return browser.find_element(By.XPATH, f"//form//button[normalize-space()='{address}']")


@pytest.mark.parametrize("width", eyes.WIDTHS)
@pytest.mark.parametrize("scheme", eyes.SCHEMES)
def test_the_pages_are_seen_without_a_fault(seen, scheme, width):
    eyes.look(seen("mail"), scheme, width)
    example(seen("mail"), postman.GONE.address).click()
    Worker([letters]).drain()
    faults = {}
    for name in ("mail", "activity"):
        browser = seen(name)
        if name == "activity":
            once(browser, lambda browser=browser: is_live(browser))
        found = [*eyes.faults(browser), *eyes.complaints(browser)]
        if wide := eyes.overflow(browser):
            found.append(f"{wide} pixels too wide")
        if found:
            faults[name] = found
    assert faults == {}


def test_what_workers_do_appears_on_the_open_page(seen, aside):
    browser = seen("mail")
    eyes.look(browser, "light", "wide")
    example(browser, postman.WORKS.address).click()
    once(browser, lambda: is_live(browser) and lines(browser) == ["enqueued"])
    aside(Worker([letters]).drain).result(10)
    once(browser, lambda: lines(browser) == ["sent", "attempt 1 started", "enqueued"])
    assert (count(browser, "enqueued"), count(browser, "sent"), count(browser, "dead")) == (1, 1, 0)
    assert eyes.complaints(browser) == []


def test_a_page_that_was_cut_off_comes_back_and_has_missed_nothing(seen, aside):
    browser = seen("mail")
    example(browser, postman.GONE.address).click()
    once(browser, lambda: is_live(browser))
    with connection.cursor() as cursor:  # what it lost is not told again
        cursor.execute('UPDATE workqueue_job SET payload = \'{"to": "moved@example.org"}\'')
    stream.end()
    once(browser, lambda: "moved@example.org" in browser.find_element(By.CSS_SELECTOR, ".events").text)
    once(browser, lambda: is_live(browser))
