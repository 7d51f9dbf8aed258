"""The house itself: the servers and fixtures that the other tests stand on."""

import shutil

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections

from testproject import postgres
from tests import interleave


@pytest.mark.django_db
def test_the_server_is_one_that_we_support():
    assert connection.pg_version >= 140000


@pytest.mark.django_db(databases=["default", "other"])
def test_the_second_alias_is_another_database_on_the_same_server():
    names = set()
    for alias in ("default", "other"):
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT current_database()")
            names.add(cursor.fetchone()[0])
    assert len(names) == 2


@pytest.mark.django_db
def test_the_migrations_are_what_the_models_say():
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


@pytest.mark.django_db(transaction=True)
def test_a_second_connection_is_seen_to_wait_for_the_first(connect, wait_until, aside):
    holder, waiter, observer = connect(), connect(), connect()
    holder.execute("SELECT pg_advisory_lock(1)")
    done = aside(waiter.execute, "SELECT pg_advisory_lock(1)")
    wait_until(lambda: interleave.waits_for_lock(observer, waiter.info.backend_pid))
    assert interleave.blocked_pids(observer) == [waiter.info.backend_pid]
    holder.execute("SELECT pg_advisory_unlock(1)")
    done.result(timeout=10)


def test_a_command_in_another_process_uses_the_test_database(manage):
    process = manage("shell", "-c", "from django.db import connection; print(connection.settings_dict['NAME'])")
    output, _ = process.communicate(timeout=30)
    assert output.splitlines()[-1] == connection.settings_dict["NAME"]


def test_a_throwaway_server_starts_survives_a_crash_and_leaves_nothing():
    server = postgres.throwaway().start()
    with psycopg.connect(server.url) as session:
        session.execute("CREATE TABLE kept AS SELECT 1 AS one")
    server.halt(mode="immediate")
    server.boot()
    with psycopg.connect(server.url) as session:
        assert session.execute("SELECT one FROM kept").fetchone() == (1,)
    server.close()
    assert not server.home.exists()


def test_a_server_ends_with_the_last_of_those_who_joined_it(wait_until):
    starter = postgres.Server(postgres.throwaway().home, settings=postgres.QUICK).start()
    joiner = postgres.Server(starter.home, settings=postgres.QUICK).start()
    starter.close()
    with psycopg.connect(joiner.url) as session:
        assert session.execute("SELECT 1").fetchone() == (1,)
    joiner.close()
    wait_until(lambda: not joiner.is_running())
    shutil.rmtree(joiner.home)
