"""The examples of docs/how-to/pubsub.md, run as they are printed there."""

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import AsyncRequestFactory

from django_workqueue import notify, publish
from django_workqueue.notify import subscribe
from tests import pages
from tests.interleave import aside, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def page() -> Any:
    """The names that the page's examples define. Runs them all, from top to bottom."""
    wakeup = subscribe("default", "tiles")
    assert wakeup.wait(10)
    yield {**pages.run("how-to/pubsub.md"), "wakeup": wakeup}
    wakeup.close()
    assert notify.close(10)


def test_the_callback_forgets_whom_the_publisher_renames(page: Any) -> None:
    user = User.objects.create(username="a")
    cache.set(f"user-{user.pk}", "cached")
    until = threading.Event()
    running = aside(page["run"], until)
    wait_until(lambda: "users" in notify.listener_state("default").channels)
    page["rename"](user, "Ada")
    wait_until(lambda: cache.get(f"user-{user.pk}") is None)
    until.set()
    running.result(10)


def test_the_event_stream_sends_what_there_is_and_then_what_changes(page: Any) -> None:
    async def main() -> list[bytes]:
        response = await page["events"](AsyncRequestFactory().get("/"))
        chunks = aiter(response)
        first = await anext(chunks)
        await sync_to_async(publish)("users", {"id": 1})
        second = await asyncio.wait_for(anext(chunks), 10)
        await chunks.aclose()
        return [first, second]

    assert async_to_sync(main)() == [b"data: 0 users\n\n", b'data: {"id":1}\n\n']


def test_the_last_example_wakes_a_queues_workers(page: Any) -> None:
    assert page["wakeup"].wait(10)
