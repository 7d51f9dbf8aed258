"""How long a renewal waits for its answer: short enough for another try, and never shorter than servers take."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from django_workqueue import Queue
from django_workqueue.database import Connection
from django_workqueue.worker.outage import Outage
from django_workqueue.worker.renew import Lease, Renewer
from tests.interleave import wait_until
from tests.relay import Relay, relayed

Keep = Callable[..., list[float]]


@pytest.fixture
def keep(queue: Queue[str]) -> Iterator[Keep]:
    """`keep(alias, seconds)`: a renewer of that alias, with one claimed item; the moments at which it was renewed."""
    renewers: list[Renewer] = []

    def start(alias: str, seconds: float) -> list[float]:
        queue.enqueue("a")
        lane: Any = SimpleNamespace(source=queue.source, seconds=seconds, lease=timedelta(seconds=seconds))
        (item,) = queue.claim(1, lease=lane.lease)
        renewed: list[float] = []
        idents = queue.source.idents([item])
        lease = Lease(
            lane,
            item._fence.token,
            time.monotonic() + seconds,
            held=lambda: idents,
            renewed=lambda _: renewed.append(time.monotonic()),
            lost=lambda gone: pytest.fail(f"lost {gone}"),
        )
        renewers.append(Renewer(alias, Outage(alias), shortest=seconds))
        renewers[-1].add(lease)
        renewers[-1].start()
        return renewed

    yield start
    for renewer in renewers:
        assert renewer.stop(10)


@pytest.fixture
def relay() -> Iterator[Relay]:
    with relayed() as relay:
        yield relay


def never_claimed(queue: Queue[str], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert queue.claim(1) == []
        time.sleep(0.02)


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_a_renewal_without_an_answer_is_tried_again_before_a_lease_of_two_seconds_has_lapsed(
    queue: Queue[str], keep: Keep, relay: Relay
) -> None:
    renewed = keep("other", 2.0)
    wait_until(lambda: renewed)
    relay.freeze()
    never_claimed(queue, 2.5)
    assert len(renewed) > 1


def test_a_server_that_takes_its_time_still_renews_a_lease_of_a_second(
    queue: Queue[str], keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the lease would not be enough."""
    extend = queue.source.extend_on

    def slowly(connection: Connection, *arguments: Any) -> Any:
        connection.execute("SELECT pg_sleep(0.4)")
        return extend(connection, *arguments)

    monkeypatch.setattr(queue.source, "extend_on", slowly)
    renewed = keep("default", 1.0)
    never_claimed(queue, 2.5)
    assert len(renewed) > 1
