"""Claim floors: where claims begin, what they may pass by, and for how long.

First by themselves, with a clock of the test's; then under a real queue.
"""

import itertools
import random

import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from django_workqueue import Entry, floors
from django_workqueue.floors import HIGHEST_RANK, LOWEST_RANK, MAX_RANKS, Floors, InboxFloor, Sparing
from django_workqueue.keyed import KeyedSource
from tests.keyed.test_enqueue import HOUR, MINUTE
from tests.keyed.test_transactions import keys, undone

NOW = 1_800_000_000_000_000  # the server's clock in µs
SECOND = 1_000_000


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def a_cost_that_is_cheap(monkeypatch):
    """As it is outside the tests."""
    monkeypatch.setattr(floors, "CHEAP", 2_000)


CHEAP, DEAR, FAR_TOO_DEAR = 1_000, 5_000, 110_000  # µs


def claim(made, *, took=CHEAP, rows=(), limit=100, at=NOW):
    """One claim as a source makes it: a look, and what is learnt from it. `rows` are (rank, available, key)."""
    look = made.look()
    last = {}
    for rank, available, key in rows:
        last[rank] = max(last.get(rank, (0, "")), (available, key))
    made.learn(look, at, took, limit=limit, last=last, count=len(rows))
    return look


def known(look):
    """The positions from which a look begins, by rank."""
    return {low: (since, after) for low, since, after, high in look.intervals if low == high}


@pytest.fixture
def dear(clock):
    """Floors of a queue that it is dear to look at from the beginning, of priorities 5 and 0."""
    made = Floors("", clock)
    made.discovered([-5, 0])
    claim(made, took=FAR_TOO_DEAR, at=0)
    return made


# What is looked at


def test_at_first_everything_is_looked_at_from_the_beginning(clock):
    look = Floors("", clock).look()
    assert look.beginning
    assert look.intervals == [(LOWEST_RANK, 0, "", HIGHEST_RANK)]


@given(st.dictionaries(st.integers(LOWEST_RANK, HIGHEST_RANK), st.tuples(st.integers(0, NOW), st.text()), max_size=70))
def test_the_intervals_of_a_look_cover_every_priority_once_and_in_order(positions):
    made = Floors("")
    made.discovered(list(positions))
    made._floors.update({rank: positions[rank] for rank in made._floors})
    for intervals in (made._intervals(made._floors), made.look().intervals):
        assert intervals[0][0] == LOWEST_RANK
        assert intervals[-1][3] == HIGHEST_RANK
        for (*_, high), (low, *_rest) in itertools.pairwise(intervals):
            assert low == high + 1
        for low, since, after, high in intervals:
            assert low <= high
            if low != high:
                assert (since, after) == (0, "")


def test_a_queue_that_it_is_cheap_to_look_at_is_always_looked_at_from_the_beginning(clock):
    made = Floors("", clock)
    made.discovered([0])
    for _ in range(50):
        assert claim(made, rows=[(0, NOW, "a")], limit=1).beginning
        clock.now += 0.01


def test_once_over_budget_is_the_machines_mood(clock):
    made = Floors("", clock)
    claim(made, took=DEAR)
    assert claim(made).beginning
    claim(made, took=DEAR)
    assert claim(made).beginning


def test_twice_running_or_by_far_is_the_index(clock):
    made = Floors("", clock)
    claim(made, took=DEAR)
    claim(made, took=DEAR)
    assert not claim(made).beginning
    other = Floors("", clock)
    claim(other, took=FAR_TOO_DEAR)
    assert not claim(other).beginning


def test_a_look_may_take_longer_the_more_it_leases(clock):
    made = Floors("", clock)
    rows = [(0, NOW, str(number)) for number in range(500)]
    for _ in range(3):
        assert claim(made, took=5_000, rows=rows, limit=500).beginning


def test_what_is_dear_is_repeated_in_a_hundred_times_its_cost_ten_seconds_or_fifty_times_its_cost(clock):
    for took, pause in ((20_001, 2.0), (90_000, 9.0), (FAR_TOO_DEAR, 10.0), (200_000, 10.0), (1_000_000, 50.0)):
        made = Floors("", clock)
        claim(made, took=took)
        clock.now += pause - 0.1
        assert not claim(made).beginning
        clock.now += 0.2
        assert claim(made, took=took).beginning
        assert not claim(made).beginning


def test_a_look_from_the_beginning_that_turns_out_cheap_ends_it(dear, clock):
    clock.now += 11
    assert claim(dear, took=CHEAP // 2).beginning
    assert claim(dear).beginning
    assert not dear.dear


def test_of_several_threads_one_looks_from_the_beginning_at_a_time(dear, clock):
    clock.now += 11
    looks = [dear.look() for _ in range(4)]
    assert [look.beginning for look in looks] == [True, False, False, False]


def test_a_second_look_from_the_beginning_is_only_taken_where_it_is_cheap(dear, clock):
    assert dear.look_again() is None
    assert Floors("", clock).look_again().beginning


# Where floors go


def test_after_a_short_claim_every_floor_is_a_second_ago(dear):
    claim(dear, rows=[(0, NOW - 60 * SECOND, "a")], limit=100)
    assert known(dear.look()) == {-5: (NOW - SECOND, ""), 0: (NOW - SECOND, "")}


def test_after_a_full_claim_the_floor_is_the_last_claimed_position(dear):
    claim(dear, rows=[(0, NOW - 60 * SECOND, "a"), (0, NOW - 60 * SECOND, "b")], limit=2)
    assert known(dear.look()) == {-5: (NOW - SECOND, ""), 0: (NOW - 60 * SECOND, "b")}


def test_a_full_claim_says_nothing_of_the_priorities_behind_its_last(dear):
    claim(dear, rows=[(-5, NOW - 60 * SECOND, "a")], limit=1)
    assert known(dear.look()) == {-5: (NOW - 60 * SECOND, "a"), 0: (0, "")}


def test_no_floor_is_ever_later_than_a_second_ago(dear):
    claim(dear, rows=[(0, NOW - 10, "a")], limit=1)
    assert known(dear.look())[0] == (NOW - SECOND, "")


def test_floors_do_not_go_back(dear):
    early = [dear.look(), dear.look()]
    claim(dear, at=NOW)
    dear.learn(early.pop(), NOW - 60 * SECOND, CHEAP, limit=100, last={}, count=0)
    dear.learn(early.pop(), NOW - 60 * SECOND, CHEAP, limit=1, last={0: (NOW - 90 * SECOND, "a")}, count=1)
    claim(dear, rows=[(0, NOW - 90 * SECOND, "a")], limit=1)
    assert known(dear.look()) == {-5: (NOW - SECOND, ""), 0: (NOW - SECOND, "")}


def test_no_floor_is_later_than_a_second_ago_on_a_server_whose_clock_is_behind_the_last_ones(dear):
    claim(dear, at=NOW)
    claim(dear, rows=[(-5, NOW - 90 * SECOND, "a")], limit=1, at=NOW - 60 * SECOND)
    assert known(dear.look()) == {-5: (NOW - 61 * SECOND, ""), 0: (NOW - 61 * SECOND, "")}


@pytest.fixture
def crowd(dear, clock):
    """A look from the beginning has just found more than it could take of priority 0, far behind the floor."""
    clock.now += 1
    claim(dear, at=NOW)
    clock.now += 11
    assert claim(dear, took=FAR_TOO_DEAR, rows=[(0, NOW - 60 * SECOND, "a")], limit=1, at=NOW + 11 * SECOND).beginning
    return dear


BEHIND = {-5: (NOW + 10 * SECOND, ""), 0: (NOW - 60 * SECOND, "a")}


def test_after_a_full_look_from_the_beginning_the_next_goes_on_where_it_ended(crowd):
    crowd._recent_at = float("inf")
    assert known(crowd.look()) == BEHIND
    claim(crowd, rows=[(0, NOW - 59 * SECOND, "b")], limit=1, at=NOW + 11 * SECOND)
    assert known(crowd.look())[0] == (NOW - 59 * SECOND, "b")


def test_a_look_from_further_on_does_not_pass_by_what_a_look_from_the_beginning_left(dear, clock):
    """It was on its way already as that one ended."""
    dear._recent_at = float("inf")
    claim(dear, at=NOW)
    clock.now += 11
    beginning, other, full = dear.look(), dear.look(), dear.look()
    last = {0: (NOW - 60 * SECOND, "a")}
    dear.learn(beginning, NOW + 11 * SECOND, FAR_TOO_DEAR, limit=1, last=last, count=1)
    dear.learn(other, NOW + 11 * SECOND, CHEAP, limit=1, last={}, count=0)
    dear.learn(full, NOW + 11 * SECOND, CHEAP, limit=1, last={0: (NOW, "b")}, count=1)
    assert known(dear.look()) == BEHIND


def test_the_recent_look_does_not_pass_by_what_a_look_from_the_beginning_left(crowd, clock):
    clock.now += 1.1  # the floors of two seconds ago are further on
    assert known(crowd.look())[0] == BEHIND[0]


def test_the_recent_look_does_not_pass_by_what_a_claim_has_left(dear, clock):
    clock.now += 1
    claim(dear, at=NOW)
    clock.now += 2.5
    claim(dear, at=NOW + SECOND)
    dear.left(dear.look(), 0, (NOW - 30 * SECOND, "a"))
    clock.now += 1.1
    assert known(dear.look())[0] == (NOW - 30 * SECOND, "a")


def test_a_priority_that_turns_up_gets_a_floor_of_its_own(dear):
    claim(dear, rows=[(-9, NOW - 60 * SECOND, "a")], limit=1)
    assert known(dear.look()) == {-9: (NOW - 60 * SECOND, "a"), -5: (0, ""), 0: (0, "")}


def test_priorities_that_are_no_longer_in_use_are_forgotten(dear):
    claim(dear, at=NOW)
    dear.discovered([0, 3])
    assert known(dear.look()) == {0: (NOW - SECOND, ""), 3: (0, "")}


def test_of_more_than_64_priorities_the_loudest_have_floors_and_the_rest_are_looked_through(clock):
    made = Floors("", clock)
    made.discovered(range(100))
    assert list(known(made.look())) == list(range(MAX_RANKS))
    assert made.look().intervals[-1] == (MAX_RANKS, 0, "", HIGHEST_RANK)
    claim(made, rows=[(99, NOW, "a")], limit=1)
    assert len(known(made.look())) == MAX_RANKS


def test_what_a_claim_found_due_and_left_is_not_passed_by(dear):
    claim(dear, at=NOW)
    look = dear.look()
    dear.left(look, -5, (NOW - 30 * SECOND, "a"))
    assert known(dear.look()) == {-5: (NOW - 30 * SECOND, "a"), 0: (NOW - SECOND, "")}


# The recent look


def test_once_a_second_a_look_starts_from_the_floors_of_two_seconds_ago(dear, clock):
    dear._rescan_at = float("inf")
    for step in range(40):  # a claim each 0.1 s, and the server's clock with them
        clock.now += 0.1
        claim(dear, at=NOW + step * SECOND // 10)
    looks = []
    for step in range(40, 60):
        clock.now += 0.1
        looks.append(NOW + step * SECOND // 10 - SECOND - known(claim(dear, at=NOW + step * SECOND // 10))[0][0])
    recent = [behind for behind in looks if behind > SECOND]
    assert len(recent) == 2
    assert all(2 * SECOND <= behind <= 3 * SECOND for behind in recent)


def test_a_row_that_was_held_for_a_moment_is_found_within_three_seconds(dear, clock):
    """Whenever it was passed by, the recent look begins before it."""
    dear._rescan_at = float("inf")
    for held in range(0, 40, 3):
        passed_by = None
        for step in range(80):
            clock.now += 0.1
            at = NOW + int((held * 80 + step) * SECOND / 10)
            look = claim(dear, at=at)
            if step == held:
                position = (at - SECOND // 2, "held")  # due, and locked while this claim went by
            elif step == held + 8:
                assert known(dear.look())[0] <= (at, "")
                passed_by = clock.now
            if step > held + 8 and known(look)[0] < position:
                assert clock.now - passed_by < 3.0
                break
        else:
            raise AssertionError("never found")


# Discovery


def test_the_priorities_in_use_are_asked_for_at_first_and_every_ten_seconds(clock):
    made = Floors("", clock)
    assert made.wants_discovery()
    clock.now += 9
    assert not made.wants_discovery()
    clock.now += 2
    assert made.wants_discovery()
    assert not made.wants_discovery()


def test_where_looking_is_dear_they_are_asked_for_before_a_look_from_the_beginning_only(dear, clock):
    clock.now += 5
    assert not dear.wants_discovery()
    clock.now += 6
    assert dear.wants_discovery()
    assert dear.look().beginning


# The inbox


def test_the_inbox_is_looked_at_from_its_first_entry_while_that_is_cheap(clock):
    inbox = InboxFloor(clock)
    for number in range(100):
        assert inbox.since() == 0
        inbox.learn(0, number, 1_000, 10)
        clock.now += 1


def test_what_is_known_of_the_inbox_is_bounded_also_while_it_is_cheap(clock):
    inbox = InboxFloor(clock)
    for number in range(1000):
        inbox.learn(inbox.since(), number, 1_000, 10)
        clock.now += 1
    assert len(inbox._seen) <= 62


def test_a_dear_inbox_is_looked_at_from_the_highest_id_of_a_minute_ago_and_at_intervals_from_the_first(clock):
    inbox = InboxFloor(clock)
    inbox.learn(0, 0, FAR_TOO_DEAR, 0)
    looked = []
    for second in range(200):
        since = inbox.since()
        looked.append(since)
        inbox.learn(since, second, FAR_TOO_DEAR, 0)
        clock.now += 1
    assert all(since == 0 or second - 62 <= since <= second - 60 for second, since in enumerate(looked))
    assert 0 < looked[100:].count(0) <= 10
    assert max(looked) > 100


def test_an_inbox_that_turns_out_cheap_again_is_looked_at_from_its_first_entry(clock):
    inbox = InboxFloor(clock)
    inbox.learn(0, 5, FAR_TOO_DEAR, 0)
    clock.now += 100
    assert inbox.since() == 0
    inbox.learn(0, 6, 10, 0)
    assert inbox.since() == 0


def test_what_is_done_sparingly_takes_a_hundredth_of_the_time(clock):
    sparing, done = Sparing(clock), []

    def work():
        done.append(clock.now)
        clock.now += 0.1

    for _ in range(4000):
        sparing.do(work)
        clock.now += 0.01
    assert 3 <= len(done) <= 6


def test_what_is_cheap_is_done_each_time(clock):
    sparing, done = Sparing(clock), []
    for _ in range(10):
        sparing.do(lambda: done.append(1))
    assert len(done) == 10


# Under a real queue


@pytest.fixture
def hurried(queue, clock):
    """A queue at which looking from the beginning is dear: it claims from its floors until the clock is moved."""
    queue.source.floors = made = Floors("", clock)
    made._dear, made._rescan_at, made._discover_at = True, float("inf"), float("inf")
    queue.enqueue("before")
    queue.complete(*queue.claim())
    assert queue.claim() == []
    return queue


def rescan(queue, clock):
    """Let it be time to look from the beginning."""
    clock.now += 1
    queue.source.floors._rescan_at = clock.now


def test_what_is_enqueued_is_found_from_the_floors(hurried):
    hurried.enqueue("a")
    assert keys(hurried.claim()) == ["a"]


def test_what_becomes_due_is_found_from_the_floors(hurried, wait_until):
    hurried.enqueue("a", delay=MINUTE / 400)
    assert hurried.claim() == []
    assert keys(wait_until(hurried.claim)) == ["a"]


def test_what_is_released_re_enqueued_revived_or_folded_is_found_from_the_floors(hurried, table):
    hurried.enqueue("released", "again", "completed", "waiting", delay=-HOUR)
    table.age("waiting")
    rescan_items = hurried.claim()
    assert len(rescan_items) == 3  # `waiting` lies before the floor now
    table.age(*keys(rescan_items), seconds=600)
    hurried.release("released")
    hurried.enqueue("again")
    hurried.complete("again", "completed")
    hurried.enqueue("completed")
    with transaction.atomic():
        hurried.enqueue("folded")
    assert sorted(keys(hurried.claim())) == ["again", "completed", "folded", "released"]


def test_a_raised_priority_is_found_from_the_floors_of_its_new_rank(hurried, table):
    hurried.enqueue("loud", priority=5)
    hurried.complete(*hurried.claim())
    hurried.enqueue("a", delay=HOUR)
    table.age("a", seconds=7200)
    assert hurried.claim() == []
    hurried.enqueue("a", priority=5)
    assert keys(hurried.claim()) == ["a"]


def test_a_lapsed_lease_waits_for_the_look_from_the_beginning_where_that_is_dear(hurried, table, clock):
    hurried.enqueue("a")
    hurried.claim()
    table.age("a", seconds=600)
    table.lapse("a")
    assert hurried.claim() == []
    rescan(hurried, clock)
    assert keys(hurried.claim()) == ["a"]


def test_a_crowd_of_lapsed_leases_is_all_found_once_a_look_from_the_beginning_has_met_it(
    hurried, table, clock, monkeypatch
):
    monkeypatch.setattr(floors, "CHEAP", 0)
    monkeypatch.setattr(floors, "CHEAP_PER_ROW", 0)
    names = [f"{number:02}" for number in range(20)]
    hurried.enqueue(*names)
    assert len(hurried.claim()) == 20
    table.age(*names, seconds=600)
    table.lapse(*names)
    assert hurried.claim() == []
    rescan(hurried, clock)
    assert [len(hurried.claim(limit=7)) for _ in range(4)] == [7, 7, 6, 0]


@pytest.mark.parametrize("beginning", [False, True])
def test_a_pause_passes_nothing_by(hurried, table, clock, beginning):
    hurried.enqueue("a", "b", "c")
    table.age("a", "b", "c", seconds=600)
    made = hurried.source.floors
    made._floors = dict.fromkeys(made._floors, (1, ""))
    if beginning:
        made._rescan_at = clock.now
    hurried.pause()
    for _ in range(5):
        clock.now += 1
        assert hurried.claim() == []
    hurried.resume()
    assert made.dear
    assert [len(hurried.claim(limit=2)) for _ in range(3)] == [2, 1, 0]


def test_a_late_commit_is_found_by_the_look_from_the_beginning(hurried, table, clock):
    hurried.enqueue("late")
    table.age("late", seconds=5)
    assert hurried.claim() == []
    rescan(hurried, clock)
    assert keys(hurried.claim()) == ["late"]


def test_a_claim_that_was_rolled_back_strands_its_items_no_longer_than_three_seconds(hurried, clock, connect, table):
    hurried.enqueue("a")
    holder = connect(autocommit=False)
    holder.execute("SELECT FROM workqueue_item WHERE queue = %s FOR UPDATE", [hurried.name])
    clock.now += 3
    assert hurried.claim() == []
    table_behind(hurried, table)
    holder.rollback()
    clock.now += 0.5
    table.age("a", seconds=0.5)
    assert hurried.claim() == []
    clock.now += 2.5
    assert keys(hurried.claim()) == ["a"]


def table_behind(queue, table):
    """Let what is due now lie before every floor, but after those of two seconds ago."""
    made = queue.source.floors
    ((at,),) = table.connection.execute("SELECT (extract(epoch FROM now()) * 1000000)::bigint").fetchall()
    made._history.append((made._clock(), dict(made._floors)))
    made._floors = dict.fromkeys(made._floors, (at, ""))


def test_a_claim_of_ones_own_that_is_rolled_back_moves_no_floor(hurried):
    hurried.enqueue("a")
    before = hurried.source.floors.look().intervals
    with undone():
        assert keys(hurried.claim()) == ["a"]
    assert hurried.source.floors.look().intervals == before
    assert keys(hurried.claim()) == ["a"]


def test_more_than_64_priorities_are_all_claimed_in_order(hurried):
    entries = [Entry(f"{number:03}", random.Random(number).randrange(-1000, 1000)) for number in range(150)]
    hurried.enqueue_many(entries)
    claimed = []
    while items := hurried.claim(limit=7):
        claimed += [item.priority for item in items]
    assert claimed == sorted((entry.priority for entry in entries), reverse=True)


def test_the_floors_of_several_workers_pass_nothing_by(make_queue, name, clock):
    """Each knows only its own claims; between them everything is worked once for each time it was asked for."""
    queue = make_queue()
    workers = []
    for _ in range(3):
        source = KeyedSource(name, None, queue.source.settings)
        source.floors = made = Floors("", clock)
        made._dear, made._rescan_at, made._discover_at = True, float("inf"), float("inf")
        workers.append(source)
    dice, asked, worked = random.Random(1), 0, []
    for turn in range(60):
        entries = [Entry(f"{turn} {number}", dice.randrange(5)) for number in range(dice.randrange(6))]
        queue.enqueue_many(entries)
        asked += len(entries)
        source = dice.choice(workers)
        items = source.claim_here(dice.randrange(1, 8), MINUTE)
        worked += keys(items)
        if dice.random() < 0.5:
            source.complete_here(items, [])
    while items := dice.choice(workers).claim_here(8, MINUTE):
        worked += keys(items)
    assert len(worked) == len(set(worked)) == asked


def test_a_queue_becomes_dear_and_cheap_again_by_what_its_claims_cost(queue, monkeypatch, clock):
    queue.source.floors = made = Floors("", clock)
    monkeypatch.setattr(floors, "CHEAP", 0)
    monkeypatch.setattr(floors, "CHEAP_PER_ROW", 0)
    queue.claim()
    queue.claim()
    assert made.dear
    queue.enqueue("a")
    assert keys(queue.claim()) == ["a"]
    monkeypatch.setattr(floors, "CHEAP", 10_000_000)
    assert made.dear
    clock.now += 3600
    queue.claim()
    assert not made.dear
