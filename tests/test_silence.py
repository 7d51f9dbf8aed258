"""Connections that have gone silent: the other end is there for TCP, and nothing comes any more."""

import time
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from django.db import OperationalError

from django_workqueue.database import Connection, Verdict, verdict
from tests.relay import Relay, relayed

pytestmark = pytest.mark.django_db(databases=["default", "other"], transaction=True)


@pytest.fixture
def relay() -> Iterator[Relay]:
    with relayed() as relay:
        yield relay


def test_a_statement_without_an_answer_raises_within_its_patience_as_if_the_connection_were_lost(relay: Relay) -> None:
    connection = Connection("other", application="test", patience=timedelta(seconds=0.3))
    assert connection.execute("SELECT 1") == [(1,)]
    relay.freeze()
    begun = time.monotonic()
    with pytest.raises(OperationalError, match=r"has not answered for 0\.3 s") as raised:
        connection.execute("SELECT 1")
    assert time.monotonic() - begun < 3
    assert verdict(raised.value) is Verdict.RECONNECT
    connection.close()
    assert connection.execute("SELECT 1") == [(1,)]
    connection.close()


def test_a_statement_that_takes_longer_than_all_before_is_waited_for_as_long_as_it_has_patience(relay: Relay) -> None:
    connection = Connection("other", application="test", patience=timedelta(seconds=30))
    assert connection.execute("SELECT pg_sleep(0.5), 1") == [("", 1)]
    connection.close()


def test_a_silent_end_is_noticed_by_tcp_unless_options_say_otherwise(relay: Relay) -> None:
    from django.db import connections

    connection = Connection("other", application="test")
    assert connection.raw.info.get_parameters().get("tcp_user_timeout") == "20000"
    assert connection.raw.info.get_parameters().get("keepalives_idle") == "15"
    connection.close()
    connections.settings["other"]["OPTIONS"]["tcp_user_timeout"] = 7000
    assert connection.raw.info.get_parameters().get("tcp_user_timeout") == "7000"
    connection.close()


def test_a_connection_knows_whether_its_server_takes_writes(relay: Relay) -> None:
    connection = Connection("other", application="test")
    assert not connection.takes_writes
    connection.execute("SELECT 1")
    assert connection.takes_writes
    connection.execute("SET default_transaction_read_only = on")  # as a demoted primary has it for everybody
    assert not connection.takes_writes
    assert isinstance(connection.raw, psycopg.Connection)
    connection.close()
