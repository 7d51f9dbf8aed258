"""The checker itself: each kind of broken promise is found."""

from pathlib import Path
from typing import Any

import pytest

from .checker import Rules, check
from .history import Ask, History, Run, read


class Tables:
    """What a server would answer: rows that are left, then jobs."""

    def __init__(self, left: list[Any], jobs: list[Any]) -> None:
        self.answers = [left, jobs]

    def execute(self, *_: Any) -> "Tables":
        return self

    def fetchall(self) -> list[Any]:
        return self.answers.pop(0)


def broken(history: History, rules: Rules | None = None, *, left: Any = (), jobs: Any = ()) -> set[str]:
    return set(check(history, Tables(list(left), list(jobs)), rules).broken)  # type: ignore[arg-type]


def run(started: float, ended: float | None, outcome: str | None = "ok", **more: Any) -> Run:
    return Run("q", more.pop("name", "a"), more.pop("attempt", 1), more.pop("pid", 1), started, ended, outcome, **more)


def test_a_line_in_the_middle_of_which_a_process_was_killed_was_not_noted(tmp_path: Path) -> None:
    noted = '{"what": "ask", "queue": "q", "names": ["a"], "began": 1, "acked": 2}\n'
    (tmp_path / "1.jsonl").write_text(noted + noted[:30])
    (tmp_path / "2.jsonl").write_text("")
    assert read(tmp_path) == History([Ask("q", "a", 1, 2)])


def test_all_is_well() -> None:
    assert broken(History([Ask("q", "a", 1, 2)], [run(2, 3)])) == set()


@pytest.mark.parametrize("runs", [[], [run(0.5, 3)], [run(2, None, None)], [run(2, 3, "ValueError")]])
def test_an_enqueue_without_a_completed_run_after_it_is_lost(runs: list[Run]) -> None:
    assert broken(History([Ask("q", "a", 1, 2)], runs)) == {"lost"}


def test_an_enqueue_that_was_not_acknowledged_need_not_be_there() -> None:
    assert broken(History([Ask("q", "a", 1, None)], [])) == set()


def test_two_runs_at_once_are_found_unless_the_first_ones_process_is_excused() -> None:
    history = History([Ask("q", "a", 1, 2)], [run(2, 4), run(3, 5, pid=2)])
    assert broken(history) == {"twice"}
    assert broken(history, Rules(excused=frozenset([1]))) == set()


def test_a_job_that_ran_again_after_it_had_completed_is_found() -> None:
    history = History([Ask("q", "a", 1, 2, job=7)], [run(2, 3, job=7), run(4, 5, job=7)])
    assert broken(history, jobs=[(7, "completed", True)]) == {"afterwards"}


def test_a_job_without_an_outcome_or_without_the_run_for_it_is_unfinished() -> None:
    history = History([Ask("q", "a", 1, 2, job=7)], [run(2, 3, job=7)])
    assert broken(history, jobs=[(7, None, False)]) == {"unfinished"}
    assert "unfinished" in broken(History([Ask("q", "a", 1, 2, job=7)]), jobs=[(7, "completed", True)])


def test_what_is_left_is_unfinished() -> None:
    assert broken(History([Ask("q", "a", 1, 2)], [run(2, 3)]), left=[("item q a", True)]) == {"unfinished"}


def test_an_attempt_beyond_the_bound_is_found() -> None:
    assert broken(History([Ask("q", "a", 1, 2)], [run(2, 3, attempt=4)]), Rules(max_attempts=3)) == {"attempts"}


def test_one_that_is_overtaken_by_long_is_found() -> None:
    asks = [Ask("q", "a", 1, 2), Ask("q", "b", 10, 11), Ask("q", "c", 40, 41)]
    runs = [run(12, 13, name="b"), run(50, 51, name="a"), run(52, 53, name="c")]
    assert broken(History(asks, runs), Rules(patience=5)) == {"overtaken"}
    assert broken(History(asks, runs), Rules(patience=60)) == set()
