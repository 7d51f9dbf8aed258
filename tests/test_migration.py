"""The migration: what it makes, that it can be taken back, and whom it refuses."""

import copy
import re

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection, connections

from django_workqueue import UnsupportedDatabase
from django_workqueue.database import require_version

TABLES = ["inbox", "item", "item_default", "job", "job_default", "minute", "queue", "worker"]
ITEM = {
    "queue": "text",
    "key": "text",
    "priority": "integer",
    "attempts": "integer",
    "enqueued_at": "timestamp with time zone",
    "available_at": "timestamp with time zone",
    "requeue_at": "timestamp with time zone",
    "lease_until": "timestamp with time zone",
    "lease_token": "bigint",
    "completed_at": "timestamp with time zone",
    "stalled_at": "timestamp with time zone",
    "last_error": "text",
}
INBOX = {
    "id": "bigint",
    "queue": "text",
    "key": "text",
    "priority": "integer",
    "available_at": "timestamp with time zone",
    "tx": "bigint",
}


def ask(text, params=(), *, alias="default"):
    with connections[alias].cursor() as cursor:
        cursor.execute(text, params)
        return cursor.fetchall()


def tables(alias="default"):
    rows = ask("SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relname LIKE 'workqueue%%'", alias=alias)
    return sorted(name.removeprefix("workqueue_") for (name,) in rows)


@pytest.mark.django_db
def test_it_makes_the_six_tables_two_of_them_with_a_default_partition():
    assert tables() == TABLES
    assert dict(
        ask("SELECT relname, relkind::text FROM pg_class WHERE relname IN ('workqueue_item', 'workqueue_job')")
    ) == {
        "workqueue_item": "p",
        "workqueue_job": "p",
    }


@pytest.mark.django_db
@pytest.mark.parametrize(("table", "columns"), [("workqueue_item", ITEM), ("workqueue_inbox", INBOX)])
def test_the_tables_have_the_columns_of_the_contract(table, columns):
    found = ask("SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s", [table])
    assert dict(found) == columns


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("table", "key"),
    [("item", "queue, key"), ("job", "id, queue"), ("inbox", "id, queue"), ("queue", "name"), ("worker", "id")],
)
def test_the_primary_keys_are_those_of_the_contract(table, key):
    found = ask(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'",
        [f"workqueue_{table}"],
    )
    assert found == [(f"PRIMARY KEY ({key})",)]


@pytest.mark.django_db
def test_queues_and_keys_are_compared_by_their_bytes():
    found = ask(
        "SELECT attname, attrelid, collname FROM pg_attribute JOIN pg_collation c ON c.oid = attcollation"
        " WHERE attrelid = ANY (%s::regclass[]) AND attname IN ('queue', 'key', 'name', 'kind')",
        [["workqueue_item", "workqueue_job", "workqueue_inbox", "workqueue_queue", "workqueue_minute"]],
    )
    assert len(found) == 9
    assert {collation for _, _, collation in found} == {"C"}


@pytest.mark.django_db
@pytest.mark.parametrize("key", ["", "x" * 513])
def test_the_table_itself_refuses_keys_that_are_too_short_or_too_long(key):
    with pytest.raises(Exception, match="check constraint"):
        ask("INSERT INTO workqueue_item (queue, key) VALUES ('q', %s) RETURNING 1", [key])


@pytest.mark.django_db
def test_a_row_that_was_never_leased_has_a_lease_that_ended_with_the_epoch():
    row = ask(
        "INSERT INTO workqueue_item (queue, key) VALUES ('q', 'k')"
        " RETURNING lease_until = 'epoch', lease_token, priority, attempts, requeue_at, completed_at, stalled_at"
    )
    assert row == [(True, 0, 0, 0, None, None, None)]


@pytest.mark.django_db
def test_the_models_are_as_the_migrations_leave_them():
    call_command("makemigrations", "workqueue", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_it_can_be_taken_back_and_done_again():
    try:
        call_command("migrate", "workqueue", "zero", database="other", verbosity=0)
        assert tables("other") == []
        assert ask("SELECT relname FROM pg_class WHERE relname LIKE 'workqueue%%'", alias="other") == []
    finally:
        call_command("migrate", "workqueue", database="other", verbosity=0)
    assert tables("other") == TABLES


@pytest.mark.django_db
def test_its_sql_can_be_read_beforehand(capsys):
    call_command("sqlmigrate", "workqueue", "0001")
    assert "PARTITION BY LIST (queue)" in capsys.readouterr().out


@pytest.fixture
def lite(django_db_setup, django_db_blocker, monkeypatch, tmp_path):
    """An alias that is SQLite."""
    settings = copy.deepcopy(connections.settings["default"])
    settings |= {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "lite", "OPTIONS": {}}
    monkeypatch.setitem(connections.settings, "lite", settings)
    with django_db_blocker.unblock():
        yield "lite"
        connections["lite"].close()
    del connections["lite"]


def test_anything_but_postgresql_is_refused_in_a_sentence_that_says_what_to_do(lite):
    with pytest.raises(UnsupportedDatabase) as raised:
        call_command("migrate", "workqueue", database=lite, verbosity=0)
    told = str(raised.value)
    assert re.search(r"PostgreSQL 14 or newer.*'lite'.*'sqlite'", told)
    assert "WORKQUEUE_DATABASE" in told
    assert "allow_migrate" in told


def test_where_the_queues_have_another_database_it_leaves_one_that_is_not_postgresql_alone(lite, settings):
    settings.WORKQUEUE_DATABASE = "default"
    call_command("migrate", database=lite, verbosity=0)
    assert [table for table in connections[lite].introspection.table_names() if "workqueue" in table] == []
    call_command("migrate", "workqueue", "zero", database=lite, verbosity=0)


def test_the_queues_own_database_is_refused_all_the_same(lite, settings):
    settings.WORKQUEUE_DATABASE = lite
    with pytest.raises(UnsupportedDatabase, match="'lite'"):
        call_command("migrate", "workqueue", database=lite, verbosity=0, skip_checks=True)


def test_a_router_can_keep_it_off_a_database(lite, settings):
    settings.DATABASE_ROUTERS = ["tests.test_migration.NotHere"]
    call_command("migrate", "workqueue", database=lite, verbosity=0)


class NotHere:
    def allow_migrate(self, db, app_label, **hints):
        return False if db == "lite" and app_label == "workqueue" else None


@pytest.mark.django_db
def test_a_postgresql_before_14_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(connections["default"], "get_database_version", lambda: (13, 16))
    with pytest.raises(UnsupportedDatabase, match=r"PostgreSQL 14 or newer.*'default' is version 13\.16\. Upgrade"):
        require_version(connections["default"])


@pytest.mark.django_db
def test_the_server_of_the_tests_is_taken():
    require_version(connections["default"])
    assert connection.pg_version >= 140000


@pytest.mark.django_db
def test_djangos_checks_find_nothing_wrong():
    assert [found for found in run_checks(databases=["default"]) if found.id.startswith(("workqueue", "models"))] == []
