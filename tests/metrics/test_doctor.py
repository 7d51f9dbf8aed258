"""The doctor: every finding produced for real, and found; a healthy database has none."""

import contextlib
import json
import os
import shlex
import time
from copy import deepcopy
from datetime import timedelta

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import override_settings

from django_workqueue import Queue, doctor, notify
from django_workqueue.doctor import Limits, Severity
from django_workqueue.models import WorkItem
from testproject import postgres
from tests.interleave import wait_until
from tests.relay import relayed

NONE = timedelta(0)
USUAL = Limits()
SOON = Limits(transaction=NONE, idle=NONE)


def execute(sql, *params):
    with connection.cursor() as cursor:
        cursor.execute(sql, params or None)


def found(code, *, using="default", limits=USUAL, about=""):
    """The findings of one code whose words have `about` in them."""
    return [each for each in doctor.examine(using, limits=limits) if each.code == code and about in f"{each}"]


@pytest.fixture(autouse=True)
def quiet(db):
    """Nobody else's workers and inbox rows."""
    execute("DELETE FROM workqueue_worker")
    execute("DELETE FROM workqueue_inbox")


def test_an_idle_transaction_is_found_with_who_holds_it(connect):
    holder = connect(autocommit=False, application_name="the holder")
    holder.execute("CREATE TEMP TABLE anything (n int)")
    (finding,) = found("idle-in-transaction", limits=SOON, about="the holder")
    assert str(holder.info.backend_pid) in finding.title
    assert f"pg_terminate_backend({holder.info.backend_pid})" in finding.advice
    assert "CREATE TEMP TABLE" in finding.detail
    assert finding.severity is Severity.WARNING
    limits = Limits(transaction=NONE, idle=NONE, serious=NONE)
    assert found("idle-in-transaction", limits=limits, about="the holder")[0].severity is Severity.SERIOUS
    assert not found("idle-in-transaction", about="the holder")
    holder.rollback()
    assert not found("idle-in-transaction", limits=SOON, about="the holder")


def test_a_long_statement_is_found(connect, aside):
    runner = connect(application_name="the runner")
    done = aside(runner.execute, "SELECT pg_sleep(20)")
    limits = Limits(transaction=NONE, idle=timedelta(hours=1))
    (finding,) = wait_until(lambda: found("long-transaction", limits=limits, about="the runner"))
    assert "pg_sleep" in finding.detail
    runner.cancel()
    with pytest.raises(psycopg.errors.QueryCanceled):
        done.result(timeout=10)


@contextlib.contextmanager
def elsewhere(server):
    """The alias `elsewhere`, for another server."""
    alias = deepcopy(connections.settings["default"])
    with psycopg.connect(server.url) as session:
        alias.update(HOST=session.info.host, PORT=session.info.port, USER=session.info.user, NAME=session.info.dbname)
    connections.settings["elsewhere"] = alias
    try:
        yield
    finally:
        connections["elsewhere"].close()
        del connections["elsewhere"]
        del connections.settings["elsewhere"]


def test_prepared_transactions_and_slots_are_found():
    settings = postgres.QUICK | {"max_prepared_transactions": "5", "wal_level": "logical"}
    server = postgres.throwaway(settings=settings).start()
    with psycopg.connect(server.url, autocommit=True) as session:
        session.execute("CREATE TABLE anything (n int)")
        session.execute("SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')")
        session.execute("BEGIN; INSERT INTO anything VALUES (1); PREPARE TRANSACTION 'it''s lost'")
        session.execute("SELECT pg_current_xact_id()")
    with elsewhere(server):
        (unmigrated,) = doctor.examine("elsewhere")
        assert (unmigrated.code, unmigrated.severity) == ("unapplied-migrations", Severity.SERIOUS)
        assert "migrate workqueue --database elsewhere" in unmigrated.advice
        call_command("migrate", "workqueue", database="elsewhere", verbosity=0)
        limits = Limits(transaction=NONE, held_transactions=0)
        (finding,) = found("prepared-transaction", using="elsewhere", limits=limits)
        assert "ROLLBACK PREPARED 'it''s lost'" in finding.advice
        (finding,) = found("replication-slot", using="elsewhere", limits=limits)
        assert "pg_drop_replication_slot('forgotten')" in finding.advice
        assert "catalogs" in finding.detail
        with psycopg.connect(server.url, autocommit=True) as session:
            session.execute("ALTER SYSTEM SET autovacuum = off")
            session.execute("SELECT pg_reload_conf()")
        wait_until(lambda: found("autovacuum-off", using="elsewhere", about="on the server"))
    server.close()


def test_a_standby_and_its_slot_that_hold_rows_are_found():
    server = postgres.throwaway().start()
    if not (server.binaries / "pg_basebackup").exists():
        pytest.skip("this PostgreSQL has no pg_basebackup")
    feedback = {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s"}
    standbys = [
        postgres.Server(server.home / name, binaries=server.binaries, settings=postgres.QUICK | feedback)
        for name in ("free", "slotted")
    ]
    with elsewhere(server), contextlib.ExitStack() as stack:
        call_command("migrate", "workqueue", database="elsewhere", verbosity=0)
        for standby in standbys:
            standby.home.mkdir()
            if standby.account:
                os.chown(standby.home, standby.account.pw_uid, standby.account.pw_gid)
            slot = ["-C", "-S", "its_slot"] if standby.home.name == "slotted" else []
            where = ["-D", str(standby.data), "-h", server.socket, "-U", "postgres"]
            server._check("pg_basebackup", *where, "-R", "-c", "fast", *slot)
            for lock in standby.data.glob(".s.PGSQL.*"):  # of the server that was copied
                lock.unlink()
            standby.boot()
            stack.callback(standby.halt, mode="immediate")
            session = stack.enter_context(psycopg.connect(standby.url))
            session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            session.execute("SELECT 1")
        with psycopg.connect(server.url, autocommit=True) as session:
            for _ in range(3):
                session.execute("SELECT pg_current_xact_id()")
        limits = Limits(held_transactions=0)
        wait_until(lambda: found("standby-feedback", using="elsewhere", limits=limits), deadline=30)
        (finding,) = wait_until(lambda: found("replication-slot", using="elsewhere", limits=limits), deadline=30)
        assert "Somebody is connected" in finding.detail
        assert "vacuum removes nothing" in finding.detail
        assert not found("standby-feedback", using="elsewhere")
    server.close()


def test_autovacuum_that_is_off_for_a_table_of_ours_is_found():
    execute("ALTER TABLE workqueue_job_default SET (autovacuum_enabled = off)")
    try:
        (finding,) = found("autovacuum-off", about="workqueue_job_default")
        assert finding.severity is Severity.SERIOUS
    finally:
        execute("ALTER TABLE workqueue_job_default RESET (autovacuum_enabled)")
    assert not found("autovacuum-off")


def test_dead_rows_and_an_empty_index_are_found(queue, connect):
    execute("ALTER TABLE workqueue_item_default SET (autovacuum_enabled = off)")
    holder = connect(autocommit=False)
    holder.execute("SELECT pg_current_xact_id()")
    try:
        queue.enqueue(*(f"{n:0200}" for n in range(5000)))
        WorkItem.objects.filter(queue=queue.name).delete()
        execute("SELECT pg_stat_force_next_flush()") if connection.pg_version >= 150000 else None
        connection.close()
        limits = Limits(dead_rows=4000, dead_share=0.1, index_bytes=100_000, bytes_per_entry=1000)
        (finding,) = wait_until(lambda: found("dead-rows", limits=limits, about="workqueue_item_default"))
        assert "VACUUM workqueue_item_default" in finding.advice
        holder.rollback()
        execute("VACUUM workqueue_item_default")
        assert any("workqueue_item_default_pkey" in each.advice for each in found("index-bloat", limits=limits))
        assert not found("dead-rows")
        assert not found("index-bloat")
    finally:
        execute("ALTER TABLE workqueue_item_default RESET (autovacuum_enabled)")


def test_a_lease_shorter_than_the_timeout_is_found(queue):
    @queue.handler(lease=timedelta(seconds=5), timeout=timedelta(seconds=60))
    def slow(item): ...

    (finding,) = found("short-lease", about=queue.name)
    assert "slow" in finding.title
    assert finding.severity is Severity.NOTE
    assert "The worker renews the lease" in finding.detail


def test_a_handler_of_several_queues_with_a_lease_shorter_than_its_timeout_is_found_once(make_jobs):
    def slow(job): ...

    queues = [make_jobs() for _ in range(3)]
    for queue in queues:
        queue.handler("kind", lease=timedelta(seconds=5), timeout=timedelta(seconds=60))(slow)
    (finding,) = found("short-lease", about="several_queues")
    assert all(repr(queue.name) in finding.detail for queue in queues)


def test_a_kind_that_nobody_handles_is_found(make_jobs):
    jobs = make_jobs()
    jobs.handler("known")(lambda job: None)
    jobs.enqueue("known")
    jobs.enqueue_many("unknown", [1, 2, 3])
    (finding,) = found("unhandled-kind", about=jobs.name)
    assert "'unknown'" in finding.title
    assert finding.detail.startswith("3 ")


def test_a_queue_that_nobody_handles_is_found(queue, make_jobs):
    make_jobs_kept = make_jobs()
    make_jobs_kept.handler("known")(lambda job: None)
    queue.enqueue("a")
    assert found("unhandled-queue", about=queue.name)
    assert not found("no-worker", limits=Limits(unworked=NONE), about=queue.name), "one could not work it"


def test_of_jobs_that_nobody_handles_it_is_not_said_as_well_that_no_worker_is_seen(queue, make_jobs):
    queue.handler(lambda item: None)
    jobs = make_jobs()
    jobs.enqueue("unknown")
    assert found("unhandled-kind", about=jobs.name)
    assert not found("no-worker", limits=Limits(unworked=NONE), about=jobs.name)


def test_where_no_handler_is_known_at_all_it_is_said_that_no_worker_is_seen(queue, monkeypatch):
    queue.enqueue("a")
    monkeypatch.setattr("django_workqueue.engine.registered", list)
    assert found("no-worker", limits=Limits(unworked=NONE), about=queue.name)


def test_the_command_that_is_advised_can_be_given_to_a_shell_as_it_is():
    queue = Queue(f"metrics-{os.getpid()} it's; $HOME")
    queue.handler(lambda item: None)
    queue.enqueue("a")
    (finding,) = found("no-worker", limits=Limits(unworked=NONE), about="HOME")
    assert shlex.split(finding.advice.partition(" (")[0]) == ["manage.py", "workqueue_work", queue.name]
    queue.remove("a")


def test_a_process_without_handlers_says_so(monkeypatch):
    monkeypatch.setattr("django_workqueue.engine.registered", list)
    assert found("no-handlers")


def test_a_deaf_or_lost_listener_is_found_and_one_that_is_off_noted(monkeypatch):
    from django_workqueue.notify import session

    monkeypatch.setattr(session, "WITHIN", 0.3)
    assert not found("listener-lost")
    with override_settings(WORKQUEUE_LISTEN_DATABASE="other"):
        with relayed() as relay:
            relay.close()
            assert found("listener-lost")
            assert notify.close(10)
        with relayed(pooling=True):
            (finding,) = found("listener-deaf")
            assert "WORKQUEUE_LISTEN_DATABASE" in finding.advice
            assert notify.close(10)
    with override_settings(WORKQUEUE_NOTIFY=False):
        (finding,) = found("notify-off")
        assert finding.severity is Severity.NOTE


def test_a_pool_smaller_than_a_workers_threads_is_found(monkeypatch):
    options = connections["default"].settings_dict["OPTIONS"]
    assert not found("small-pool")
    monkeypatch.setitem(options, "pool", {"min_size": 2, "max_size": 4})
    monkeypatch.setattr(type(connections["default"]), "pool", None)
    monkeypatch.setattr("django_workqueue.doctor.asking.Server.ask", lambda *_, **__: [("w", "h", 1, "[]", 16, 1.0)])
    from django_workqueue.doctor import project
    from django_workqueue.doctor.asking import Server

    (finding,) = project.pool(Server("default"), Limits())
    assert "At most 4 connections for 16" in finding.detail
    monkeypatch.setitem(options, "pool", {"max_size": 16})
    assert not list(project.pool(Server("default"), Limits()))


def test_an_inbox_that_nobody_folds_is_found(queue):
    from django.db import transaction

    with transaction.atomic():
        queue.enqueue("a", "b", "c")
    (finding,) = found("inbox-backlog", limits=Limits(inbox=2))
    assert queue.name in finding.detail
    queue.claim()
    assert not found("inbox-backlog", limits=Limits(inbox=2))


def test_paused_queues_piles_and_work_without_a_worker_are_found(make_queue, make_jobs):
    queue, jobs = make_queue(max_attempts=1), make_jobs(max_attempts=1)
    queue.handler(lambda item: None)
    queue.enqueue("a", "b")
    jobs.enqueue("kind")
    limits = Limits(pile=1, unworked=NONE)
    (finding,) = found("no-worker", limits=limits, about=queue.name)
    assert finding.severity is Severity.SERIOUS
    execute(
        "INSERT INTO workqueue_worker (id, host, pid, queues, concurrency) VALUES ('w', 'h', 1, %s, 8)",
        json.dumps([queue.name]),
    )
    assert not found("no-worker", limits=limits, about=queue.name)
    queue.pause()
    assert found("paused", about=queue.name)
    queue.resume()
    queue.release(*queue.claim(), error="no")
    (job,) = jobs.claim()
    jobs.fail(job, ValueError("no"))
    assert "2 stalled items" in found("dead-pile", limits=limits, about=queue.name)[0].title
    assert "1 dead jobs" in found("dead-pile", limits=limits, about=jobs.name)[0].title
    assert not found("dead-pile", about=queue.name)


def test_a_worker_that_was_not_seen_for_long_is_found():
    execute(
        "INSERT INTO workqueue_worker (id, host, pid, concurrency, seen_at) "
        "VALUES ('lost', 'far', 7, 8, statement_timestamp() - interval '10 min')"
    )
    (finding,) = found("silent-worker")
    assert "lost" in finding.title
    assert "10 min" in finding.title


def test_a_clock_that_differs_is_noted_and_said_not_to_matter(monkeypatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 86_400)
    (finding,) = found("clock")
    assert finding.severity is Severity.NOTE
    assert "24 h behind the server's" in finding.title


def test_a_question_that_takes_too_long_is_given_up_and_told(connect, monkeypatch):
    holder = connect(autocommit=False)
    holder.execute("LOCK TABLE workqueue_worker IN ACCESS EXCLUSIVE MODE")
    began = time.monotonic()
    assert found("slow", about="workers")
    assert time.monotonic() - began < 15
    holder.rollback()


def test_the_command_prints_and_its_exit_code_says_whether_something_is_serious(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda using: [])
    call_command("workqueue_doctor")
    assert capsys.readouterr().out.strip() == "All is well."
    finding = doctor.Finding("code", Severity.WARNING, "Title", "One\nTwo", "Do it", "default")
    monkeypatch.setattr(doctor, "examine", lambda using: [finding])
    call_command("workqueue_doctor")
    assert capsys.readouterr().out.splitlines() == [
        "WARNING: Title [code, default]",
        "    One",
        "    Two",
        "    → Do it",
    ]
    serious = doctor.Finding("code", Severity.SERIOUS, "Title", "One", "Do it", "default")
    monkeypatch.setattr(doctor, "examine", lambda using: [serious])
    with pytest.raises(SystemExit) as exit_:
        call_command("workqueue_doctor", "--json", "--database", "default")
    assert exit_.value.code == 1
    (told,) = json.loads(capsys.readouterr().out)["findings"]
    assert told == {
        "code": "code",
        "severity": "serious",
        "title": "Title",
        "detail": "One",
        "advice": "Do it",
        "database": "default",
    }


def test_without_citus_there_is_nothing_to_distribute():
    with pytest.raises(CommandError, match="has no Citus"):
        call_command("workqueue_distribute")
