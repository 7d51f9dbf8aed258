"""Marking what is out of attempts, which a claim that came back short does on the side, and what that may cost."""

import pytest

from django_workqueue import floors
from django_workqueue.floors import Sparing
from django_workqueue.sql import items
from tests.keyed.test_plans import MANY, around, buffers, explain, session

__all__ = ["around", "session"]


def test_items_out_of_attempts_are_found_past_any_number_of_deferred_ones(session, around, name):
    around(MANY, priority="i %% 5", available_at="now() + interval '1 day'")
    around(3, key="'spent' || i", lease_until="now() - interval '1 minute'", lease_token="7", attempts="2")
    plan = explain(session, items.STALL.of(name), {"max": 2, "limit": 1000, "error": "no"}, ordered=items.STALL.ordered)
    assert buffers(plan) < 200


@pytest.mark.parametrize("cheap", [True, False])
def test_maintenance_marks_them_within_that_share_too_and_a_reap_by_hand_always(
    make_queue, table, own, monkeypatch, cheap
):
    queue = make_queue(max_attempts=1)
    monkeypatch.setattr(floors, "CHEAP", 10_000_000 if cheap else -1)
    queue.source.maintain_on(own)
    queue.enqueue("a")
    queue.claim(limit=1)
    table.lapse("a")
    queue.source.maintain_on(own)
    assert table.state("a") == ("stalled" if cheap else "lapsed")
    queue.reap()
    assert table.state("a") == "stalled"


@pytest.mark.parametrize("took", [0.02, 0.1, 0.25, 2.0])
def test_what_is_dear_takes_no_more_than_a_hundredth_of_the_time(monkeypatch, took):
    monkeypatch.setattr(floors, "CHEAP", 2_000)
    now, done = [0.0], []

    def call():
        done.append(now[0])
        now[0] += took

    sparing = Sparing(lambda: now[0])
    while now[0] < 1000:
        sparing.do(call)
        now[0] += 0.5
    assert 0.7 <= took * len(done) * 100 / 1000 <= 1


def test_what_is_cheap_is_done_each_time_and_what_is_dear_within_its_share(monkeypatch):
    monkeypatch.setattr(floors, "CHEAP", 2_000)
    now, took, done = [0.0], [0.001], []

    def call():
        done.append(now[0])
        now[0] += took[0]

    sparing = Sparing(lambda: now[0])
    for _ in range(5):
        sparing.do(call)
    assert len(done) == 5
    took[0] = 0.1
    sparing.do(call)
    for _ in range(99):
        now[0] += 0.1
        sparing.do(call)
    assert len(done) == 6
    now[0] += 0.2
    sparing.do(call)
    assert len(done) == 7
