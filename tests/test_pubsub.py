"""Pub/sub: what may be published, when it is sent, who hears it, and what becomes of those who are slow or gone."""

import asyncio
import contextlib
import copy
import decimal
import gc
import math
import os
import pickle
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.db import connection, connections, transaction

from django_workqueue import notify, pubsub
from django_workqueue.exceptions import InvalidPayload, PayloadTooLarge
from django_workqueue.notify import Status, listener, subscribe
from django_workqueue.pubsub import Message, Subscriber, apublish, publish
from tests.interleave import wait_until
from tests.relay import relayed
from tests.test_notify import LISTENS

pytestmark = pytest.mark.django_db(databases=["default", "other"])

CHANNEL = "news"

# A `db` test is one transaction of Django's, which is never committed: only a transactional one hears `publish`.
committing = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    assert notify.close(10)  # what other tests have left to linger
    yield
    assert notify.close(10)
    wait_until(
        lambda: not [t for t in threading.enumerate() if t.name.startswith(("workqueue-listen", "workqueue-sub"))]
    )


@pytest.fixture
def send(second: psycopg.Connection[Any]) -> Callable[..., None]:
    """`send(payload, channel=CHANNEL)`: as another program would."""

    def send_one(payload: object = "", channel: str = CHANNEL) -> None:
        second.execute("SELECT pg_notify(%s, %s)", [channel, str(payload)])

    return send_one


@pytest.fixture
def raw(connect: Any) -> Callable[[], list[str]]:
    """`raw()`: the payloads that another program has heard on CHANNEL since it last asked."""
    heard: list[str] = []
    other, sender = connect(), connect()
    other.add_notify_handler(lambda note: heard.append(note.payload))
    other.execute(f"LISTEN {CHANNEL}")

    def until_now() -> list[str]:
        marker = str(uuid.uuid4())
        sender.execute("SELECT pg_notify(%s, %s)", [CHANNEL, marker])
        wait_until(lambda: other.execute("SELECT 1") and marker in heard)
        at = heard.index(marker)
        until = heard[:at]
        del heard[: at + 1]
        return until

    return until_now


def collect(*channels: str, **options: Any) -> tuple[Subscriber, list[Message]]:
    subscriber = Subscriber(**options)
    got: list[Message] = []
    for channel in channels or (CHANNEL,):
        subscriber.handle(channel, got.append)
    return subscriber, got


def in_a_loop(main: Callable[[], Any]) -> Any:
    """Run the coroutine function; sync code that it calls runs in this thread, on this thread's connections."""
    return async_to_sync(main)()


# Publishing


@committing
def test_publish_outside_a_transaction_is_heard_at_once(raw: Any) -> None:
    publish(CHANNEL, "hello")
    publish(CHANNEL)
    assert raw() == ["hello", ""]


@committing
def test_publish_rides_the_callers_transaction_and_its_savepoints(raw: Any) -> None:
    with transaction.atomic():
        publish(CHANNEL, "kept")
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            publish(CHANNEL, "rolled back with its savepoint")
            raise ZeroDivisionError
        assert raw() == []
    assert raw() == ["kept"]
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        publish(CHANNEL, "rolled back")
        raise ZeroDivisionError
    assert raw() == []


@committing
def test_apublish_rides_the_transaction_of_the_sync_code_behind_it(raw: Any) -> None:
    async def main() -> None:
        await apublish(CHANNEL, "from a coroutine")

    with transaction.atomic():
        async_to_sync(main)()
        assert raw() == []
    assert raw() == ["from a coroutine"]
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        async_to_sync(main)()
        raise ZeroDivisionError
    assert raw() == []


@pytest.mark.parametrize(
    "value",
    [None, True, 0, 1.5, [], {}, [1, "zwei", None], {"a": {"b": ["ü🐘\n\0"]}}, -(2**70)],
)
@committing
def test_json_travels_as_json_text_and_comes_back_equal(value: Any, raw: Any) -> None:
    publish(CHANNEL, value)
    (text,) = raw()
    assert Message(CHANNEL, text).json() == value


@committing
def test_what_djangos_encoder_knows_is_json_too(raw: Any) -> None:
    number = uuid.uuid4()
    publish(CHANNEL, {"id": number, "price": decimal.Decimal("1.10")})
    assert raw() == [f'{{"id":"{number}","price":"1.10"}}']


@pytest.mark.parametrize("value", [b"", b"abc", bytes(range(256)), bytearray(b"\0\xff"), memoryview(b"view")])
@committing
def test_bytes_travel_as_base64_and_come_back_equal(value: Any, raw: Any, second: Any) -> None:
    publish(CHANNEL, value)
    (text,) = raw()
    assert Message(CHANNEL, text).bytes() == bytes(value)
    assert second.execute("SELECT decode(%s, 'base64')", [text]).fetchone()[0] == bytes(value)


@pytest.mark.parametrize("value", ["", "null", '"quoted"', "ünï 🐘 \\ %s %(x)s", " ", "\n", "x" * 7_999, "é" * 3_999])
@committing
def test_text_is_sent_as_it_is(value: str, raw: Any) -> None:
    publish(CHANNEL, value)
    assert raw() == [value]


@pytest.mark.parametrize(
    ("value", "size"),
    [("x" * 8_000, "8,000"), ("é" * 4_000, "8,000"), (b"x" * 6_000, "8,000"), (["x" * 7_998], "8,002")],
)
def test_over_7999_bytes_are_refused_and_their_number_named(value: Any, size: str) -> None:
    with pytest.raises(PayloadTooLarge, match=size):
        publish(CHANNEL, value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a\0b", "NUL character at 1"),
        ("a\ud800", "lone surrogate at 1"),
        ({"a": "\ud800"}, "lone surrogate"),
        (object(), "payload is a object, which is not JSON"),
        ({"to": [1, {2}]}, r"payload\.to\[1\] is a set"),
        (math.nan, "payload is nan"),
        ([math.inf], r"payload\[0\] is inf"),
        ({("a",): 1}, "the key .*, a tuple"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_it_reaches_the_database(
    value: Any, words: str, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(0), pytest.raises(InvalidPayload, match=words):
        publish(CHANNEL, value)


def test_a_model_instance_and_a_circle_are_no_payloads() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for value in (User(username="a"), circle):
        with pytest.raises(InvalidPayload):
            publish(CHANNEL, value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("channel", "error", "words"),
    [
        ("", ValueError, "'' has 0"),
        ("x" * 64, ValueError, "has 64"),
        ("é" * 32, ValueError, "has 64"),
        ("a\0b", ValueError, "NUL"),
        ("\ud800", ValueError, "lone surrogate"),
        (b"bytes", TypeError, "b'bytes'"),
        (None, TypeError, "None"),
    ],
)
def test_what_is_no_channel_is_refused_by_all_who_take_one(channel: Any, error: type[Exception], words: str) -> None:
    subscriber = Subscriber()
    for call in (publish, lambda name: subscriber.handle(name, print), subscriber.messages):
        with pytest.raises(error, match=words):
            call(channel)


HOSTILE = [
    "it's",
    'a "quoted" one',
    '"; DROP TABLE workqueue_item; --',
    "'); SELECT pg_terminate_backend(pg_backend_pid()); --",
    "100% %s %(x)s {} {0} {channel}",
    "ünï¢ödé 🐘",
    " padded ",
    "Case",
    "select",
    "*",
    "new\nline\ttab\r",
    "\\",
    "$$",
    "$1",
    "x" * 63,
    "é" * 31,
    "🐘" * 15 + "xyz",
    "\u202eright to left",
    "\x01\x7f",
]


@committing
def test_channels_of_any_name_are_quoted_everywhere_and_kept_apart(send: Any) -> None:
    subscriber, got = collect(*HOSTILE, CHANNEL)
    with subscriber:
        for name in HOSTILE:
            publish(name, name)
            send(name, name)
        send("the last")
        wait_until(lambda: "the last" in got)
    assert [(message.channel, message.payload) for message in got[:-1]] == [
        (name, name) for name in HOSTILE for _ in range(2)
    ]


@committing
def test_publishing_a_queues_name_on_the_wakeups_channel_wakes_its_workers() -> None:
    wakeup = subscribe("default", "tiles")
    assert wakeup.wait(10)
    publish("workqueue", "tiles")
    assert wakeup.wait(10)
    wakeup.close()


@committing
def test_using_names_the_database(raw: Any) -> None:
    subscriber, got = collect(using="other")
    with subscriber:
        publish(CHANNEL, "there", using="other")
        publish(CHANNEL, "here")
        wait_until(lambda: got)
    assert got == ["there"]
    assert raw() == ["here"]


# Messages


def test_a_message_is_its_payload_with_its_channel() -> None:
    message = Message(CHANNEL, '{"a": [1]}')
    assert message == '{"a": [1]}'
    assert f"data: {message}" == 'data: {"a": [1]}'
    assert message.channel == CHANNEL
    assert type(message.payload) is str
    assert message.json() == {"a": [1]}
    with pytest.raises(ValueError):
        message.bytes()
    with pytest.raises(ValueError):
        Message(CHANNEL, "not json").json()
    assert repr(message) == "Message(channel='news', payload='{\"a\": [1]}')"
    for same in (pickle.loads(pickle.dumps(message)), copy.deepcopy(message)):
        assert (type(same), same.channel, same) == (Message, CHANNEL, message)


# Callbacks


def test_callbacks_get_the_messages_of_their_channel_in_order(send: Any) -> None:
    subscriber, got = Subscriber(), []

    @subscriber.handle("a")
    def on_a(message: Message) -> None:
        got.append(("a", message))

    subscriber.handle("b", lambda message: got.append(("b", message)))
    subscriber.handle("b", lambda message: got.append(("b too", message)))
    with subscriber:
        for number in range(3):
            send(number, "a")
            send(number, "b")
            send(number, "c")
        wait_until(lambda: len(got) == 9)
    assert got == [(name, str(number)) for number in range(3) for name in ("a", "b", "b too")]
    assert callable(on_a)


def test_start_returns_when_it_listens(send: Any) -> None:
    for number in range(5):
        subscriber, got = collect(f"channel {number}")
        assert subscriber.start()
        send("at once", f"channel {number}")
        wait_until(got.copy)
        assert subscriber.stop(10)


def test_handle_raises_after_the_start() -> None:
    subscriber, _ = collect()
    with subscriber, pytest.raises(RuntimeError, match="started already"):
        subscriber.handle("late", print)
    with pytest.raises(RuntimeError, match="started already"):
        subscriber.handle("late", print)


def test_it_starts_once_and_stops_as_often_as_asked() -> None:
    subscriber, _ = collect()
    with subscriber, pytest.raises(RuntimeError, match="started already"):
        subscriber.start()
    assert subscriber.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        subscriber.start()
    with pytest.raises(RuntimeError, match="stopped"):
        subscriber.messages(CHANNEL)
    assert Subscriber().stop()


def test_a_timeout_that_is_no_number_is_refused_and_stops_nothing() -> None:
    subscriber, _ = collect()
    minute: Any = timedelta(minutes=1)
    with subscriber:
        for stop in (subscriber.stop, async_to_sync(subscriber.astop)):
            with pytest.raises(TypeError, match="timeout is a number of seconds, not datetime"):
                stop(minute)
        with pytest.raises(RuntimeError, match="started already"):
            subscriber.start()


@pytest.mark.parametrize("fn", ["print", 5])
def test_what_cannot_be_called_is_no_callback(fn: Any) -> None:
    with pytest.raises(TypeError, match="cannot be called"):
        Subscriber().handle(CHANNEL, fn)


def test_an_async_callback_is_refused_with_a_word_on_what_to_do() -> None:
    async def fn(message: Message) -> None:
        raise AssertionError

    class Caller:
        async def __call__(self, message: Message) -> None:
            raise AssertionError

    for each in (fn, Caller()):
        with pytest.raises(TypeError, match="messages"):
            Subscriber().handle(CHANNEL, each)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_callbacks_exception_is_logged_and_stops_nothing(
    error: type[BaseException], send: Any, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber, got = Subscriber(), []

    @subscriber.handle(CHANNEL)
    def on_news(message: Message) -> None:
        if message == "bad":
            raise error("not this one")
        got.append(message)

    subscriber.handle(CHANNEL, got.append)
    with subscriber:
        send("bad")
        send("good")
        wait_until(lambda: len(got) == 3)
    assert got == ["bad", "good", "good"]
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "news" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is error


def test_a_slow_callback_holds_up_neither_wakeups_nor_other_subscribers(send: Any) -> None:
    held, entered = threading.Event(), threading.Event()
    slow, (quick, got) = Subscriber(), collect()

    @slow.handle(CHANNEL)
    def on_news(_: Message) -> None:
        entered.set()
        held.wait(30)

    wakeup = subscribe("default", "tiles")
    with slow, quick:
        assert wakeup.wait(10)
        send("x")
        assert entered.wait(10)
        send("tiles", "workqueue")
        assert wakeup.wait(10)
        send("y")
        wait_until(lambda: got == ["x", "y"])
        held.set()
    wakeup.close()


def test_stop_waits_for_the_running_callback_and_drops_the_rest(send: Any) -> None:
    held, entered, calls = threading.Event(), threading.Event(), []

    def slow(message: Message) -> None:
        calls.append(message)
        entered.set()
        held.wait(30)

    subscriber = Subscriber()
    subscriber.handle(CHANNEL, slow)
    subscriber.start()
    send("one")
    send("two")
    assert entered.wait(10)
    assert not subscriber.stop(0.01)
    held.set()
    assert subscriber.stop(10)
    assert calls == ["one"]


def test_a_callback_may_stop_its_subscriber(send: Any) -> None:
    stopped = threading.Event()
    subscriber = Subscriber()

    @subscriber.handle(CHANNEL)
    def on_news(_: Message) -> None:
        subscriber.stop()
        stopped.set()

    subscriber.start()
    send()
    assert stopped.wait(10)
    assert subscriber.stop(10)


@committing
def test_callbacks_use_the_database_and_leave_no_connection(second: Any, send: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    pids: list[int] = []

    def query(_: Message) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])

    subscriber = Subscriber()
    subscriber.handle(CHANNEL, query)
    with subscriber:
        send()
        wait_until(lambda: pids)
    wait_until(lambda: not second.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pids[0]]).fetchone())


def test_who_falls_behind_loses_the_oldest_and_the_log_says_so_once(
    send: Any, caplog: pytest.LogCaptureFixture
) -> None:
    held, entered, got = threading.Event(), threading.Event(), []

    def slow(message: Message) -> None:
        got.append(message)
        entered.set()
        held.wait(30)

    subscriber, (beside, seen) = Subscriber(buffer=3), collect()
    subscriber.handle(CHANNEL, slow)
    with subscriber, beside:
        send(0)
        assert entered.wait(10)
        for number in range(1, 11):
            send(number)
        wait_until(lambda: len(seen) == 11)
        held.set()
        wait_until(lambda: len(got) == 4)
    assert got == ["0", "8", "9", "10"]
    assert len([record for record in caplog.records if "loses the oldest" in record.getMessage()]) == 1


@pytest.mark.parametrize("buffer", [0, -1])
def test_a_buffer_holds_at_least_one_message(buffer: int) -> None:
    with pytest.raises(ValueError, match=str(buffer)):
        Subscriber(buffer=buffer)
    with pytest.raises(ValueError, match=str(buffer)):
        Subscriber().messages(CHANNEL, buffer=buffer)


# The connection


def test_subscribers_and_wakeups_share_one_connection(second: Any) -> None:
    wakeup = subscribe("default", "tiles")
    one, other = collect("a", "b")[0], collect("b", "c")[0]
    with one, other:
        assert wakeup.wait(10)
        wait_until(lambda: len(second.execute(LISTENS).fetchall()) == 1)
        assert notify.listener_state("default").channels == {"a", "b", "c", "workqueue"}
        one.stop()
        wait_until(lambda: notify.listener_state("default").channels == {"b", "c", "workqueue"})
    wait_until(lambda: notify.listener_state("default").channels == {"workqueue"})
    wakeup.close()
    wait_until(lambda: not second.execute(LISTENS).fetchall())


def test_a_subscriber_hears_again_after_its_connection_was_lost(second: Any, send: Any) -> None:
    subscriber, got = collect()

    async def main() -> None:
        messages = subscriber.messages(CHANNEL)
        await asyncio.to_thread(second.execute, f"SELECT pg_terminate_backend(pid, 5000) FROM ({LISTENS}) AS listening")
        await asyncio.to_thread(wait_until, lambda: send("x") or got)
        assert await anext(messages) == "x"

    with subscriber:
        asyncio.run(main())
    assert got[0] == "x"


def test_start_says_so_when_the_database_is_away_and_hears_when_it_is_back(monkeypatch: Any, send: Any) -> None:
    monkeypatch.setattr(listener, "RECONNECT", lambda _: timedelta(milliseconds=10))
    with relayed() as relay:
        port, (subscriber, got) = relay.port, collect(using="other")
        connections.settings["other"]["PORT"] = 1
        assert subscriber.start() is False
        connections.settings["other"]["PORT"] = port
        wait_until(lambda: notify.listener_state("other").status is Status.LISTENING)
        send("back")
        wait_until(lambda: got)
        subscriber.stop()


def test_the_listen_alias_stands_in_for_the_queues_database_and_for_no_other(settings: Any) -> None:
    settings.WORKQUEUE_LISTEN_DATABASE = "other"
    assert Subscriber()._alias == "other"
    assert Subscriber("default")._alias == "other"
    settings.WORKQUEUE_DATABASE = "other"
    settings.WORKQUEUE_LISTEN_DATABASE = "somewhere"
    assert Subscriber("default")._alias == "default"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_in_a_forked_child_the_parents_subscriber_is_none_and_one_of_its_own_works(send: Any) -> None:
    subscriber, got = collect()
    prepared, mine = collect()
    with subscriber:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                assert subscriber.stop(1)
                with pytest.raises(RuntimeError, match="after the fork"):
                    subscriber.messages(CHANNEL)
                assert prepared.start()
                os.write(write, b"!")
                wait_until(lambda: mine == ["both"])
                prepared.stop(5)
                notify.close(5)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.read(read, 1) == b"!"
        send("both")
        assert os.waitpid(child, 0)[1] == 0
        send("parent")
        wait_until(lambda: got == ["both", "parent"])
        os.close(read)
        os.close(write)


# Coroutines


def test_a_coroutine_iterates_over_what_is_published_after_it_entered(second: Any) -> None:
    async def main() -> list[Message]:
        async with Subscriber() as subscriber, subscriber.messages(CHANNEL) as messages:
            for number in range(3):
                second.execute("SELECT pg_notify(%s, %s)", [CHANNEL, str(number)])
            return [await anext(messages) for _ in range(3)]

    assert asyncio.run(main()) == ["0", "1", "2"]


@committing
def test_async_for_hears_what_apublish_says() -> None:
    async def main() -> list[Any]:
        got: list[Any] = []
        async with Subscriber() as subscriber:

            async def follow() -> None:
                async for message in subscriber.messages(CHANNEL):
                    got.append(message.json())
                    if len(got) == 3:
                        return

            following = asyncio.create_task(follow())
            await asyncio.to_thread(wait_until, lambda: CHANNEL in notify.listener_state("default").channels)
            for number in range(3):
                await apublish(CHANNEL, {"number": number})
            await asyncio.wait_for(following, 10)
        return got

    assert in_a_loop(main) == [{"number": 0}, {"number": 1}, {"number": 2}]


def test_messages_need_no_start(send: Any) -> None:
    async def main() -> Message:
        async with Subscriber().messages(CHANNEL) as messages:
            await asyncio.to_thread(send, "x")
            return await anext(messages)

    assert asyncio.run(main()) == "x"


def test_a_cancelled_iteration_loses_no_message(send: Any) -> None:
    async def main() -> Message:
        async with Subscriber().messages(CHANNEL) as messages:
            waiting = asyncio.create_task(anext(messages))
            await asyncio.sleep(0)
            messages._mailbox.receive(CHANNEL, "x")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return await anext(messages)

    assert asyncio.run(main()) == "x"


def test_stop_ends_every_iteration() -> None:
    async def main() -> list[list[Message]]:
        async with Subscriber() as subscriber:

            async def follow(messages: AsyncIterator[Message]) -> list[Message]:
                return [message async for message in messages]

            following = [asyncio.create_task(follow(subscriber.messages(CHANNEL))) for _ in range(3)]
            await asyncio.sleep(0)
            await subscriber.astop()
            return await asyncio.wait_for(asyncio.gather(*following), 10)

    assert asyncio.run(main()) == [[], [], []]


def test_an_iteration_that_is_left_or_forgotten_listens_no_longer(send: Any) -> None:
    async def main() -> None:
        async with Subscriber() as subscriber:
            async with subscriber.messages("left") as messages:
                assert "left" in notify.listener_state("default").channels
                await asyncio.to_thread(send, "x", "left")
                async for _ in messages:
                    break
            forgotten = subscriber.messages("forgotten")
            async with contextlib.aclosing(subscriber.messages("closed")):
                pass
            del forgotten, messages
            gc.collect()
            await asyncio.to_thread(wait_until, lambda: not notify.listener_state("default").channels)
            assert not subscriber._iterated

    asyncio.run(main())


def test_a_coroutine_that_falls_behind_loses_the_oldest(send: Any) -> None:
    async def main() -> tuple[list[Message], int]:
        async with Subscriber() as subscriber, subscriber.messages(CHANNEL, buffer=2) as messages:
            async with subscriber.messages(CHANNEL) as beside:
                for number in range(5):
                    await asyncio.to_thread(send, number)
                for _ in range(5):
                    await anext(beside)
            return [await anext(messages), await anext(messages)], messages.dropped

    assert asyncio.run(main()) == (["3", "4"], 3)


def test_many_iterations_start_no_threads_and_block_no_loop(send: Any) -> None:
    async def main() -> list[Message]:
        async with contextlib.AsyncExitStack() as stack:
            streams = []
            for _ in range(200):
                subscriber = await stack.enter_async_context(Subscriber())
                streams.append(await stack.enter_async_context(subscriber.messages(CHANNEL)))
            before = threading.active_count()
            waiting = [asyncio.create_task(anext(stream)) for stream in streams]
            await asyncio.to_thread(send, "to all")
            got = await asyncio.wait_for(asyncio.gather(*waiting), 30)
            assert threading.active_count() <= before + 1
            return list(got)

    started = time.monotonic()
    assert asyncio.run(main()) == ["to all"] * 200
    assert time.monotonic() - started < 30


def test_the_sync_context_manager_works_in_a_coroutine_too(send: Any) -> None:
    async def main() -> Message:
        with Subscriber() as subscriber:
            messages = subscriber.messages(CHANNEL)
            await asyncio.to_thread(wait_until, lambda: CHANNEL in notify.listener_state("default").channels)
            await sync_to_async(send)("x")
            return await anext(messages)

    assert in_a_loop(main) == "x"


def test_the_modules_names_are_these() -> None:
    assert pubsub.__all__ == ["Message", "Messages", "Subscriber", "apublish", "publish"]
