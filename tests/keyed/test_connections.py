"""The connections under a queue: their isolation, what is tried again, zones, and databases that will not do."""

import copy
import os
import subprocess
import sys
from datetime import timedelta

import psycopg
import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.utils import DatabaseError
from psycopg import IsolationLevel

from django_workqueue import Queue, UnsupportedDatabase
from django_workqueue.database import Connection
from tests import conftest as house
from tests import interleave
from tests.keyed.test_enqueue import HOUR, MINUTE, about
from tests.keyed.test_transactions import keys


@pytest.fixture
def options(db, monkeypatch):
    """`options(name=value)`: OPTIONS of the default alias, on connections opened from now on."""

    def change(**options):
        connections.close_all()
        settings = connections["default"].settings_dict
        monkeypatch.setitem(settings, "OPTIONS", settings["OPTIONS"] | options)

    yield change
    connections.close_all()


@pytest.mark.parametrize(
    "given",
    [
        {"isolation_level": IsolationLevel.SERIALIZABLE},
        {"isolation_level": IsolationLevel.REPEATABLE_READ},
        {"options": "-c default_transaction_isolation=serializable"},
    ],
    ids=str,
)
def test_our_own_connections_are_read_committed_whatever_options_says(options, given):
    options(**given)
    own = Connection("default", application="test")
    try:
        assert own.execute("SELECT current_setting('transaction_isolation')") == [("read committed",)]
    finally:
        own.close()


def test_a_limit_on_statements_that_options_sets_is_not_for_our_own_connections(options):
    """A row that somebody holds is waited for longer than that, and then gone around."""
    options(options="-c statement_timeout=50ms")
    own = Connection("default", application="test")
    try:
        assert own.execute("SELECT pg_sleep(0.2)")
    finally:
        own.close()


@pytest.mark.parametrize("pooled", [False, True])
def test_the_server_too_gives_up_a_statement_that_nobody_waits_for_any_more(queue, connect, wait_until, pooled):
    """It does not notice by itself as long as it waits for a lock: sessions would pile up."""
    holder, observer = connect(autocommit=False), connect()
    holder.execute("LOCK workqueue_job")
    own = Connection("default", application="gives up", patience=timedelta(seconds=0.3))
    for _ in range(2):
        if pooled:
            own.raw.execute("SET statement_timeout = 0")
            own.pooled, own._cursor = True, psycopg.ClientCursor(own.raw)
        with pytest.raises(OperationalError, match=r"has not answered for 0\.3 s"):
            own.execute("SELECT count(*) FROM workqueue_job")
        own.close()
    mine = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'gives up'"
    assert observer.execute(mine).fetchall()
    wait_until(lambda: not observer.execute(mine).fetchall())


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE], ids=str)
def test_a_queue_works_whatever_the_isolation(options, make_queue, table, level):
    options(isolation_level=level)
    queue = make_queue(max_attempts=1)
    queue.enqueue("a", "b", "c", "d")
    with transaction.atomic():
        queue.enqueue("e")
    a, b, c, _d, _e = queue.claim()
    assert queue.complete(a) == queue.release(b) == queue.remove("d") == 1
    assert queue.extend(c, lease=HOUR) == [c]
    table.lapse("c")
    queue.reap()
    assert [table.state(key) for key in "abcde"] == ["completed", "stalled", "stalled", "absent", "leased"]


# Tried again


def settle(queue, verb):
    return {
        "complete": lambda: queue.complete("a", "b"),
        "release": lambda: queue.release("a", "b"),
        "remove": lambda: queue.remove("a", "b"),
    }[verb]()


@pytest.mark.parametrize("verb", ["complete", "release", "remove"])
def test_a_serialisation_failure_is_tried_again(options, make_queue, connect, aside, wait_until, verb):
    """At REPEATABLE READ a statement that waited for a writer of its row fails with 40001."""
    options(isolation_level=IsolationLevel.REPEATABLE_READ)
    queue = make_queue()
    queue.enqueue("a", "b")
    queue.claim()
    holder, observer = connect(autocommit=False), connect()
    holder.execute("UPDATE workqueue_item SET priority = 1 WHERE queue = %s AND key = 'b'", [queue.name])
    done = aside(settle, queue, verb)
    wait_until(lambda: interleave.blocked_pids(observer))
    holder.commit()
    assert done.result(10) == 2


@pytest.mark.parametrize("verb", ["complete", "release", "remove"])
def test_a_deadlock_is_tried_again(queue, connect, aside, wait_until, verb):
    """With a stranger that locks in an order of its own, and waits longer than we do before it looks for one.

    (A session looks once for each wait: ours must still be waiting for that when the stranger's wait begins.)
    """
    queue.enqueue("a", "b")
    queue.claim()
    stranger, observer = connect(autocommit=False), connect()
    stranger.execute("SET deadlock_timeout = '10s'")
    stranger.execute("SELECT FROM workqueue_item WHERE queue = %s AND key = 'b' FOR UPDATE", [queue.name])

    def impatient():
        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '500ms'")
        return settle(queue, verb)

    with interleave.noting_deadlocks() as met:
        done = aside(impatient)
        wait_until(lambda: interleave.blocked_pids(observer))
        stranger.execute("SELECT FROM workqueue_item WHERE queue = %s AND key = 'a' FOR UPDATE", [queue.name])
        stranger.commit()
        assert done.result(10) == 2
    assert len(met) == 1


def test_in_a_callers_transaction_nothing_is_tried_again(queue, connect, aside, wait_until):
    queue.enqueue("a", "b")
    queue.claim()
    stranger, observer = connect(autocommit=False), connect()
    stranger.execute("SET deadlock_timeout = '10s'")
    stranger.execute("SELECT FROM workqueue_item WHERE queue = %s AND key = 'b' FOR UPDATE", [queue.name])

    def in_a_transaction():
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET deadlock_timeout = '500ms'")
            return queue.complete("a", "b")

    done = aside(in_a_transaction)
    wait_until(lambda: interleave.blocked_pids(observer))
    stranger.execute("SELECT FROM workqueue_item WHERE queue = %s AND key = 'a' FOR UPDATE", [queue.name])
    stranger.rollback()
    with pytest.raises(OperationalError, match="deadlock detected"):
        done.result(10)


def test_what_a_claim_leased_is_not_forgotten_when_what_follows_it_must_be_tried_again(make_queue, table, monkeypatch):
    """A claim is several statements: each is tried again by itself."""
    from django_workqueue import database
    from django_workqueue.keyed import WorkItemQuerySet
    from django_workqueue.sql import items

    queue = make_queue(max_attempts=3)
    queue.enqueue("a", "b")
    send, failures = WorkItemQuerySet._send, [1, 1, 1]

    def failing(self, statement, name, params):
        if statement is items.STALL and failures and failures.pop():
            raise DatabaseError("could not serialize access") from database.psycopg.errors.SerializationFailure()
        return send(self, statement, name, params)

    monkeypatch.setattr(WorkItemQuerySet, "_send", failing)
    assert keys(queue.claim()) == ["a", "b"]
    assert failures == []
    assert [table.row(key).attempts for key in "ab"] == [1, 1]


# Zones


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize("zone", ["America/St_Johns", "Asia/Kathmandu", "Pacific/Kiritimati", "Europe/London"])
def test_a_queue_works_in_any_time_zone_with_and_without_use_tz(make_queue, table, settings, use_tz, zone):
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    connections.close_all()
    try:
        queue = make_queue(max_attempts=2, retention=HOUR)
        queue.enqueue("now", "older")
        queue.enqueue("later", delay=HOUR)
        with transaction.atomic():
            queue.enqueue("inside", delay=HOUR)
        table.age("older", seconds=100)
        older, now = queue.claim(lease=MINUTE)
        assert (older.key, now.key) == ("older", "now")
        assert table.row("now").lease_left == about(60)
        assert [table.row(key).due_in for key in ("later", "inside")] == [about(3600)] * 2
        assert queue.claim() == []
        assert queue.release(older, delay=HOUR) == queue.complete(now) == 1
        assert table.row("older").due_in == about(3600)
        stats = queue.stats()
        assert (stats.scheduled, stats.completed, stats.oldest_ready_age) == (3, 1, timedelta(0))
        queue.enqueue("older")
        assert keys(queue.claim()) == ["older"]
        assert queue.reap() == 0
    finally:
        connections.close_all()


# Databases that will not do


@pytest.fixture
def lite(db, monkeypatch, tmp_path):
    settings = copy.deepcopy(connections.settings["default"])
    settings |= {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "lite", "OPTIONS": {}}
    monkeypatch.setitem(connections.settings, "lite", settings)
    yield "lite"
    connections["lite"].close()
    del connections["lite"]


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.enqueue("a"),
        lambda queue: queue.claim(),
        lambda queue: queue.complete("a"),
        lambda queue: queue.release("a"),
        lambda queue: queue.remove("a"),
        lambda queue: queue.reap(),
        lambda queue: queue.pause(),
        lambda queue: queue.is_paused(),
        lambda queue: queue.stats(),
        lambda queue: queue.stats(exact=False),
    ],
)
def test_anything_but_postgresql_is_refused_in_a_sentence(lite, name, call):
    queue = Queue(name, using=lite)
    with pytest.raises(UnsupportedDatabase, match=r"needs PostgreSQL 14 or newer.*'lite' is 'sqlite'"):
        call(queue)


def test_inside_a_transaction_too(lite, name):
    with transaction.atomic(using=lite), pytest.raises(UnsupportedDatabase):
        Queue(name, using=lite).enqueue("a")


def test_an_alias_that_does_not_exist_is_djangos_own_error(name, db):
    from django.utils.connection import ConnectionDoesNotExist

    with pytest.raises(ConnectionDoesNotExist):
        Queue(name, using="nowhere").enqueue("a")


# Before Django is ready


def run_python(script, **env):
    return subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | house.environment() | env,
        cwd=house.PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_everything_can_be_imported_and_queues_made_before_django_is_ready(queue, table):
    done = run_python(
        "from django_workqueue import *\n"
        f"queue = Queue({queue.name!r})\n"
        "import django; django.setup()\n"
        "queue.enqueue('a')\n"
        "print([item.key for item in queue.claim()], queue.complete('a'))\n"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("['a'] 1\n", "", 0)


def test_a_queue_can_be_made_in_the_settings_and_is_the_same_everywhere(queue, tmp_path):
    (tmp_path / "settings_with_a_queue.py").write_text(
        f"from django_workqueue import Queue\nfrom tests.settings import *\nTILES = Queue({queue.name!r})\n"
    )
    done = run_python(
        "import django; django.setup()\n"
        "from django.conf import settings\n"
        "from datetime import timedelta\n"
        "from django_workqueue import Queue\n"
        "settings.TILES.enqueue('a')\n"
        "print([item.key for item in Queue(settings.TILES.name).claim()])\n"
        "settings.TILES.enqueue('b')\n"
        "print(settings.TILES.wait(timedelta(seconds=5)))\n",
        DJANGO_SETTINGS_MODULE="settings_with_a_queue",
        PYTHONPATH=str(tmp_path),
    )
    assert (done.stdout, done.stderr, done.returncode) == ("['a']\nTrue\n", "", 0)
