"""The network between: slow, cut, refusing, and silent. No hang is longer than a stated bound."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from testproject import postgres
from tests.interleave import wait_until

from .conftest import MakeStage, Report
from .network import Network
from .stage import QUEUES, SCALE, Stage, scaled, timed

SILENCE = 60.0  # seconds after which every connection that has gone silent is given up: what the guarantees state
KINDS = ["listen", "claim", "settle", "renew", "maintain", "enqueue", ""]

Networked = tuple[Stage, Network]


@pytest.fixture
def networked(make_stage: MakeStage) -> Iterator[Networked]:
    """A stage whose processes reach the server through a network of ours."""
    server = postgres.throwaway().start()
    network = Network(server.socket)
    yield make_stage(server=server, url=network.url), network
    network.close()


def load(stage: Stage, *, each: int, seconds: float, **env: str) -> None:
    for _ in range(2):
        stage.work("--processes", "2", **env)
    # Not inside atomic(): that goes over the project's own connection, which waits as long as the project says.
    stage.produce(*QUEUES, "--count", str(each), "--threads", "2", "--rate", str(each / 2 / seconds), **env)
    stage.wait_for_runs(30)


def goes_on(stage: Stage, deadline: float, *, runs: int = 20) -> float:
    """Wait until work is done again; how long it took."""
    before = stage.ended()
    return timed(lambda: wait_until(lambda: stage.ended() > before + runs or stage.is_over(), deadline))


@pytest.mark.timeout(300)
def test_connections_cut_at_random_and_refused_for_a_while(networked: Networked, report: Report) -> None:
    stage, network = networked
    load(stage, each=scaled(1500), seconds=20)
    worst = 0.0
    for _ in range(scaled(10)):
        stage.fault("cut")
        for link in network.those():
            if stage.chance.random() < 0.5:
                link.close()
        if stage.chance.random() < 0.3:
            network.refusing = True
            network.cut()
            time.sleep(stage.chance.uniform(0.5, 2))
            network.refusing = False
        stage.healed()
        worst = max(worst, goes_on(stage, 60))
        time.sleep(stage.chance.uniform(0, 1))
    report(stage.finish(more={"back_after_s": round(worst, 2)}))


@pytest.mark.timeout(300)
def test_a_slow_network_only_slows(networked: Networked, report: Report) -> None:
    stage, network = networked
    network.delay = 0.05
    load(stage, each=scaled(500), seconds=10)
    stage.fault("delay")
    report(stage.finish(more={"delay_s": network.delay}))
    assert "stopped in time" not in stage.said()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "weather",
    [{"delay": 0.005, "jitter": 0.2}, {"loss": 0.05}, {"piece": 7, "jitter": 0.002}, {"piece": 1}],
    ids=["jitter", "loss", "torn", "byte_by_byte"],
)
def test_whatever_comes_late_or_in_pieces_is_waited_for(
    networked: Networked, report: Report, weather: dict[str, Any]
) -> None:
    """From start to end: nothing is given up, nothing runs twice."""
    stage, network = networked
    network.__dict__.update(weather)
    stage.fault(next(iter(weather)))
    load(stage, each=scaled(200), seconds=6)
    figures = stage.finish()
    assert figures["duplicates"] == figures["unacknowledged"] == 0
    assert "has not answered" not in stage.said()
    report(figures)


@pytest.mark.timeout(300)
def test_a_network_that_is_bad_for_a_while_and_cut_now_and_then_loses_nothing(
    networked: Networked, report: Report
) -> None:
    """6 spells of losses, jitter and torn data, with cuts inside them; 60 with FAULTS_SCALE=10."""
    stage, network = networked
    load(stage, each=scaled(600), seconds=12, FAULTS_LEASE="15")
    for _ in range(scaled(6)):
        stage.fault("spell")
        network.loss, network.jitter = stage.chance.choice([0.02, 0.1, 0.3]), stage.chance.choice([0.0, 0.05])
        network.piece = stage.chance.choice([65536, 100])
        time.sleep(stage.chance.uniform(0.5, 1.5))
        for link in network.those():
            if stage.chance.random() < 0.3:
                link.close()
        network.loss, network.jitter, network.piece = 0.0, 0.0, 65536
        stage.healed()
        goes_on(stage, 60)
    report(stage.finish())


@pytest.mark.timeout(400)
@pytest.mark.parametrize("application", KINDS if SCALE >= 10 else ["settle", "enqueue", ""])
def test_a_connection_gone_silent_is_given_up_within_the_bound(
    networked: Networked, report: Report, application: str
) -> None:
    """Half-open: the other end is there for TCP, yet nothing comes. New connections work."""
    stage, network = networked
    load(stage, each=scaled(300), seconds=8, FAULTS_LEASE="15", FAULTS_PACE="10")
    name = f"django_workqueue {application}" if application else ""
    wait_until(lambda: network.those(name), 40)
    stage.fault("silent")
    silenced = network.blackhole(name)
    begun = time.monotonic()
    figures = stage.finish(deadline=SILENCE + 90)
    report(figures | {"silenced": silenced, "over_after_s": round(time.monotonic() - begun, 1)})


@pytest.mark.timeout(300)
def test_a_listener_gone_silent_hears_again(networked: Networked, report: Report) -> None:
    stage, network = networked
    stage.work("--processes", "1", "--poll", "300")
    stage.produce("faults-keys", "--count", "1", "--threads", "1", "--tag", "first")
    stage.wait_for_runs(1)
    wait_until(lambda: network.those("django_workqueue listen"), 20)
    stage.fault("silent")
    network.blackhole("django_workqueue listen")
    stage.healed()
    stage.produce("faults-keys", "--count", "1", "--threads", "1", "--tag", "second")
    took = timed(lambda: stage.wait_for_runs(2, 90))
    report(stage.finish(more={"woken_after_s": round(took, 1)}))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("state", ["silent", "refusing"])
def test_a_stop_keeps_its_deadline_whatever_the_network_does(networked: Networked, report: Report, state: str) -> None:
    stage, network = networked
    worker = stage.work("--processes", "2", "--shutdown-timeout", "3")
    stage.produce(*QUEUES, "--count", "200")
    stage.wait_for_runs(30)
    stage.fault(state)
    if state == "silent":
        network.silent = True
        network.blackhole()
    else:
        network.refusing = True
        network.cut()
    time.sleep(1)
    worker.terminate()
    took = timed(lambda: worker.wait(30))
    assert worker.returncode == 0
    assert took < 3 + 5 + 3
    report({"stopped_after_s": round(took, 1), "deadline_s": 3})
