"""The activity page and the stream that feeds it: what handlers publish arrives, and whoever leaves is let go of."""

import asyncio
import socket
from contextlib import aclosing, closing
from urllib.request import ProxyHandler, build_opener

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import AsyncClient
from django.urls import reverse

import testproject.tiles.tasks  # noqa: F401 - the handlers
from django_workqueue import Worker, notify, publish
from django_workqueue.pubsub import Message
from django_workqueue.testing import drain
from testproject.tiles import activity, history, postman, stream, welcome
from testproject.tiles.activity import Event, What
from testproject.tiles.demo.webserver import PATIENCE, WebServer
from testproject.tiles.grid import TileKey
from testproject.tiles.queues import letters, tiles

DEADLINE = 10


@pytest.fixture
def server(transactional_db):
    with WebServer(0) as server:
        yield server
    assert notify.close(DEADLINE)


class Listening:
    """A client of the stream, of whom nobody knows when he will go."""

    def __init__(self, server):
        port = int(server.url.rstrip("/").rpartition(":")[2])
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self._socket.sendall(f"GET {reverse('tiles:events')} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        self._received = b""
        self.head = self.until(b"\r\n\r\n")
        self.state = self.until(b"</ol>")

    def until(self, text):
        """What comes, up to and with `text`."""
        while text not in self._received:
            more = self._socket.recv(65536)
            assert more, f"it ended before {text}: {self._received}"
            self._received += more
        before, found, self._received = self._received.partition(text)
        return (before + found).decode()

    def rest(self):
        while more := self._socket.recv(65536):
            self._received += more
        return self._received

    def close(self):
        self._socket.close()


@pytest.fixture
def listen(server):
    opened = []

    def open_one():
        opened.append(Listening(server))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


def listening():
    """Whether anybody of this process listens for events."""
    return activity.CHANNEL in notify.listener_state("default").channels


# The stream, over HTTP


def test_the_stream_delivers_what_a_handler_publishes_on_another_connection(listen, aside):
    client = listen()
    welcome.enqueue(postman.WORKS.address)
    assert aside(Worker([letters]).drain).result(DEADLINE).completed == 1
    told = client.until(b"event: sent") + client.until(b"</li>")
    assert told.index("event: enqueued") < told.index("event: started") < told.index("event: sent")
    assert postman.WORKS.address in told


def test_a_refusal_is_told_as_a_dead_letter_and_a_failure_as_an_attempt(listen, aside):
    client = listen()
    welcome.enqueue(postman.GONE.address)
    welcome.enqueue(postman.BUSY.address)
    aside(Worker([letters]).drain).result(DEADLINE)
    told = client.until(b"event: failed") + client.until(b"</li>")
    if "event: dead" not in told:  # they run side by side
        told += client.until(b"event: dead") + client.until(b"</li>")
    assert "attempt 1 failed" in told
    assert "SMTPServerDisconnected" in told
    assert f"There is nobody of the address {postman.GONE.address}" in told


def test_a_rendered_tile_is_told(listen, aside):
    client = listen()
    tiles.enqueue(TileKey("julia", 3, 4, 4))
    aside(Worker([tiles]).drain).result(DEADLINE)
    assert "data: julia 3/4/4" in client.until(b"event: rendered\n") + client.until(b"\n\n")


def test_the_stream_is_one_that_nobody_keeps_back_or_stores(listen):
    head = listen().head.lower()
    assert "content-type: text/event-stream\r\n" in head
    assert "cache-control: no-cache\r\n" in head
    assert "x-accel-buffering: no\r\n" in head


def test_a_client_that_leaves_takes_its_subscriber_along(listen, wait_until):
    staying, leaving = listen(), listen()
    assert len(stream._listening) == 2
    leaving.close()
    wait_until(lambda: len(stream._listening) == 1)
    staying.close()
    wait_until(lambda: not stream._listening)
    wait_until(lambda: not listening())


def test_streams_keep_nobody_from_other_pages(server, listen):
    for _ in range(20):
        listen()
    opener = build_opener(ProxyHandler({}))
    for name in ("page", "mail", "activity"):
        with opener.open(server.url.rstrip("/") + reverse(f"tiles:{name}"), timeout=DEADLINE) as response:
            assert response.status == 200


def test_a_server_that_stops_does_not_wait_for_its_streams(server, listen, aside):
    clients = [listen(), listen()]
    aside(server.stop).result(PATIENCE - 0.5)
    for client in clients:
        assert client.rest().endswith(b"0\r\n\r\n")  # the end of a whole answer
    assert not listening()


# The stream, by itself


@pytest.fixture
def told(transactional_db):
    """Runs a coroutine that gets the stream's chunks as an iterator, each within a deadline."""

    def run(work):
        async def main():
            async with aclosing(stream.live()) as chunks:
                await work(lambda: asyncio.wait_for(anext(chunks), DEADLINE))

        async_to_sync(main)()

    yield run
    assert notify.close(DEADLINE)


def test_in_a_silence_the_stream_says_that_it_is_still_there_and_loses_nothing(told, monkeypatch):
    monkeypatch.setattr(stream, "KEEP_ALIVE", 0.01)

    async def work(following):
        await following()
        assert (await following()).startswith(":")
        await asyncio.to_thread(tell, Event(What.RENDERED, "julia 0/0/0"))
        while (chunk := await following()).startswith(":"):
            pass
        assert chunk == "event: rendered\ndata: julia 0/0/0\n\n"

    told(work)


def test_a_stream_begins_with_what_happened_before(told):
    welcome.enqueue("grace@example.org")

    async def work(following):
        state = await following()
        assert state.startswith("retry: ")
        assert "event: state\n" in state
        assert "grace@example.org" in state
        assert all(line.startswith(("retry:", "event:", "data:")) for line in state.splitlines() if line)

    told(work)


def test_a_cancelled_stream_closes_its_subscriber(transactional_db):
    async def main():
        begun = asyncio.Event()

        async def follow():
            async for _ in stream.live():
                begun.set()

        following = asyncio.create_task(follow())
        await asyncio.wait_for(begun.wait(), DEADLINE)
        (subscriber,) = stream._listening
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        with pytest.raises(RuntimeError, match="stopped"):
            subscriber.messages(activity.CHANNEL)

    async_to_sync(main)()
    assert notify.close(DEADLINE)


def test_what_is_no_event_of_ours_is_passed_over(told):
    async def work(following):
        await following()
        for strange in ("hello", {"what": "nothing"}, ["a"]):
            await asyncio.to_thread(shout, strange)
        await asyncio.to_thread(tell, Event(What.RENDERED, "julia 0/0/0"))
        assert "julia 0/0/0" in await following()

    told(work)


def test_markup_in_an_address_is_text(told):
    async def work(following):
        await following()
        await asyncio.to_thread(tell, Event(What.ENQUEUED, '"<script>"@example.org', 1))
        assert "&quot;&lt;script&gt;&quot;@example.org" in await following()

    told(work)


@pytest.mark.django_db
def test_a_wsgi_server_is_given_the_state_and_an_end(client):
    response = client.get(reverse("tiles:events"))
    assert response["Content-Type"] == "text/event-stream"
    assert "event: state" in response.content.decode()


@pytest.mark.django_db
def test_the_stream_can_only_be_read():
    assert async_to_sync(AsyncClient().post)(reverse("tiles:events")).status_code == 405


# The page


@pytest.mark.django_db(transaction=True)
def test_what_was_told_is_what_the_page_finds_in_the_tables(second):
    second.execute(f"LISTEN {activity.CHANNEL}")
    for example in postman.EXAMPLES:
        welcome.enqueue(example.address)
    drain(letters, ignore_delays=True)
    told = [
        Event.told(Message(activity.CHANNEL, note.payload)) for note in second.notifies(timeout=DEADLINE, stop_after=13)
    ]
    found = history.recent()
    assert len(told) == 13
    assert {event.key for event in found} <= {event.key for event in told}
    ends = {What.ENQUEUED, What.FAILED, What.SENT, What.DEAD}
    assert facts(event for event in found if event.what in ends) == facts(event for event in told if event.what in ends)


@pytest.mark.django_db
def test_without_scripts_the_page_shows_what_happened_newest_first(client):
    welcome.enqueue(postman.GONE.address)
    drain(letters)
    page = client.get(reverse("tiles:activity")).content.decode()
    assert page.index("dead letter</b>") < page.index("enqueued</b>")
    assert "PermanentError: There is nobody" in page
    assert 'data-count="dead">1<' in page


@pytest.mark.django_db
def test_the_page_of_a_day_on_which_nothing_happened_is_empty(client):
    assert (
        '<ol class="events" aria-label="What happened, the newest first"></ol>'
        in client.get(reverse("tiles:activity")).content.decode()
    )


def facts(events):
    return sorted((event.what, event.whom, event.job, event.attempt, event.error) for event in events)


def tell(event):
    with closing(connection):
        activity.tell(event)


def shout(what):
    with closing(connection):
        publish(activity.CHANNEL, what)
