"""Statements sent through libpq's own calls, one or two in a message, and what becomes of the connection."""

import contextlib
import math
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, OperationalError

from django_workqueue import wire
from django_workqueue.database import Connection, Errand, Verdict, verdict
from django_workqueue.wire import Wire
from tests.relay import Relay, relayed

pytestmark = pytest.mark.django_db(databases=["default", "other"], transaction=True)

INSERT = "INSERT INTO pg_temp.noted (number, note, flag) SELECT %(number)s::int, %(note)s::text, %(flag)s::boolean"
NOTE = {"number": 1, "note": "a", "flag": True}


@pytest.fixture
def connection() -> Iterator[Connection]:
    """One of our own, with a table that refuses the number 13."""
    connection = Connection("default", application="test")
    connection.execute(
        "CREATE TEMP TABLE noted (number int CONSTRAINT unlucky CHECK (number <> 13), note text, flag boolean)"
    )
    yield connection
    connection.close()


@pytest.fixture
def wired(connection: Connection) -> Wire:
    assert connection._wire is not None
    return connection._wire


def noted(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT number, note, flag FROM noted ORDER BY number")


# One


@pytest.mark.parametrize(
    "note",
    ["", "ünïcode 🙂", "with % and %% and $1 and 'quotes' and \\", None, "x" * 5_000_000],
    ids=["empty", "text", "signs", "nothing", "long"],
)
def test_values_arrive_as_they_are(connection: Connection, note: str | None) -> None:
    for number in (0, -(2**31), 2**31 - 1):
        connection.run(INSERT, {"number": number, "note": note, "flag": number == 0})
    assert noted(connection) == [(-(2**31), note, False), (0, note, True), (2**31 - 1, note, False)]


def test_a_name_may_stand_in_several_places_and_a_percent_sign_is_written_twice(connection: Connection) -> None:
    connection.run(
        "INSERT INTO noted SELECT %(a)s::int, %(b)s::text || '100%%' || %(b)s::text, %(a)s::int > 0", {"b": "b", "a": 7}
    )
    assert noted(connection) == [(7, "b100%b", True)]


def test_a_statement_is_prepared_once(connection: Connection, wired: Wire) -> None:
    for number in (1, 2, 13, 3):
        with pytest.raises(DatabaseError) if number == 13 else contextlib.nullcontext():
            connection.run(INSERT, NOTE | {"number": number})
    assert [row[0] for row in noted(connection)] == [1, 2, 3]
    names = connection.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'workqueue%%'")
    assert names == [(1,)]


def test_an_error_has_its_code_and_its_constraint_and_leaves_the_connection_usable(connection: Connection) -> None:
    with pytest.raises(DatabaseError) as raised:
        connection.run(INSERT, NOTE | {"number": 13})
    cause = raised.value.__cause__
    assert isinstance(cause, psycopg.errors.CheckViolation)
    assert cause.diag.constraint_name == "unlucky"
    connection.run(INSERT, NOTE)
    assert noted(connection) == [(1, "a", True)]


def test_what_could_not_be_prepared_is_tried_anew(connection: Connection) -> None:
    late = "INSERT INTO late SELECT %(number)s::int"
    for _ in range(2):
        with pytest.raises(DatabaseError, match="late"):
            connection.run(late, {"number": 1})
    connection.execute("CREATE TEMP TABLE late (number int)")
    connection.run(late, {"number": 1})
    assert connection.execute("SELECT number FROM late") == [(1,)]


@pytest.mark.parametrize("value", [["a"], "a\0b", 1.5], ids=["a list", "NUL", "a fraction"])
def test_what_is_not_sent_here_goes_by_a_cursor(connection: Connection, wired: Wire, value: Any) -> None:
    assert not wired.takes(INSERT, {"note": value})
    assert wired.takes(INSERT, {"note": "a"})


def test_so_does_what_there_is_no_room_for(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST", 2)
    for extra in range(4):
        for _ in range(2):
            connection.run(f"{INSERT} WHERE {extra} = {extra}", NOTE)
    assert len(noted(connection)) == 8
    (count,) = connection.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'workqueue%%'")
    assert count == (2,)


# Two


def test_what_goes_along_is_a_transaction_of_its_own_after_the_first(connection: Connection) -> None:
    errand = connection.behind = Errand(
        ("INSERT INTO noted SELECT count(*), pg_current_xact_id()::text FROM noted", {})
    )
    connection.run(INSERT.replace("%(note)s::text", "pg_current_xact_id()::text"), {"number": 5, "flag": None})
    connection.finish()
    assert (errand.sent, errand.done, errand.error) == (True, True, None)
    (count, second, _), (number, first, _) = noted(connection)
    assert (count, number) == (1, 5)
    assert int(second) > int(first)


def test_it_goes_along_once(connection: Connection) -> None:
    connection.behind = Errand((INSERT, NOTE | {"note": "behind"}))
    connection.run(INSERT, NOTE)
    assert connection.behind is None
    connection.run(INSERT, NOTE)
    assert sorted(row[1] for row in noted(connection)) == ["a", "a", "behind"]


@pytest.mark.parametrize("number", [2, 13], ids=["good", "refused"])
def test_an_answer_that_nobody_asked_for_is_in_nobodys_way(connection: Connection, number: int) -> None:
    errands = [Errand((INSERT, NOTE | {"number": number})) for _ in range(3)]
    for errand in errands:
        connection.behind = errand
        connection.run(INSERT, NOTE)
    assert len(noted(connection)) == (3 if number == 13 else 6)
    assert {errand.sent for errand in errands} == {True}
    assert {(errand.done, errand.error is None) for errand in errands} == {(number != 13, number != 13)}


def test_its_error_is_not_the_firsts(connection: Connection) -> None:
    errand = connection.behind = Errand((INSERT, NOTE | {"number": 13}))
    connection.run(INSERT, NOTE)
    connection.finish()
    assert "unlucky" in str(errand.error)
    assert not errand.done
    assert noted(connection) == [(1, "a", True)]


def test_the_firsts_error_is_not_its_own_and_then_it_does_not_count(connection: Connection) -> None:
    errand = connection.behind = Errand((INSERT, NOTE | {"note": "behind"}))
    with pytest.raises(DatabaseError, match="unlucky"):
        connection.run(INSERT, NOTE | {"number": 13})
    assert not errand.sent
    assert noted(connection) == [(1, "behind", True)]


# Connections that end


@pytest.mark.parametrize("behind", [None, (INSERT, NOTE)], ids=["one", "two"])
def test_a_server_process_that_ends_is_a_lost_connection(connection: Connection, connect: Any, behind: Any) -> None:
    connection.run(INSERT, NOTE)
    (row,) = connection.execute("SELECT pg_backend_pid()")
    connect().execute("SELECT pg_terminate_backend(%s, 5000)", row)
    errand = connection.behind = None if behind is None else Errand(behind)
    with pytest.raises(DatabaseError) as raised:
        connection.run(INSERT, NOTE)
    assert verdict(raised.value) is Verdict.RECONNECT
    connection.finish()
    assert errand is None or not errand.done
    connection.close()
    assert connection.execute("SELECT 1") == [(1,)]


def test_one_that_ends_itself_in_the_middle_is_too(connection: Connection) -> None:
    connection.behind = Errand((INSERT, NOTE))
    with pytest.raises(DatabaseError) as raised:
        connection.run("SELECT pg_terminate_backend(pg_backend_pid()), %(number)s::int", {"number": 1})
    assert verdict(raised.value) is Verdict.RECONNECT


def test_what_has_no_answer_within_its_patience_closes_the_connection() -> None:
    with relayed() as relay:
        connection = _silent(relay)
        began = time.monotonic()
        with pytest.raises(OperationalError, match=r"has not answered for 0\.3 s"):
            connection.run("SELECT %(number)s::int", {"number": 1})
        assert time.monotonic() - began < 3
        with pytest.raises(DatabaseError) as raised:
            connection.run("SELECT %(number)s::int", {"number": 1})
        assert verdict(raised.value) is Verdict.RECONNECT
        connection.close()
        connection.run("SELECT %(number)s::int", {"number": 1})
        connection.close()


def _silent(relay: Relay) -> Connection:
    connection = Connection("other", application="test", patience=timedelta(seconds=0.3))
    connection.run("SELECT %(number)s::int", {"number": 1})
    relay.freeze()
    return connection


def test_an_interrupt_before_anything_is_sent_does_too(
    connection: Connection, wired: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def __init__(self, pgconn: Any) -> None:
            self.pgconn = pgconn

        def __getattr__(self, name: str) -> Any:
            return getattr(self.pgconn, name)

        def enter_pipeline_mode(self) -> None:
            self.pgconn.enter_pipeline_mode()
            raise KeyboardInterrupt

    monkeypatch.setattr(wired, "_pgconn", Interrupted(connection.raw.pgconn))
    with pytest.raises(KeyboardInterrupt):
        connection.run(INSERT, NOTE)
    assert connection.raw.closed


def test_a_forked_child_inherits_neither_what_was_to_go_along_nor_by_when(connection: Connection) -> None:
    connection.behind, connection.until = Errand((INSERT, NOTE)), 0.0
    raw = connection.raw
    connection.forget()
    assert connection.behind is None
    assert connection.until == math.inf
    raw.close()


def test_an_interrupt_closes_the_connection_and_is_raised(
    connection: Connection, wired: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(connection.raw, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            connection.run(INSERT, NOTE)
    assert connection.raw.closed
