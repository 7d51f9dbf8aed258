"""Tasks and `workqueue_work`: processes that know no more than `TASKS` and the installed apps."""

import signal
import time
from typing import Any

from django.test import override_settings

from django_workqueue import JobQueue
from django_workqueue.models import WorkJob
from tests.interleave import wait_until
from tests.tasks.conftest import BACKEND, TASKS, Shop
from tests.tasks.native import FAILED, IMMEDIATE, READY, RUNNING, SUCCESSFUL, TAKES_KEYWORDS, task_backends
from tests.tasks.shop import keywords, tasks, unlisted

OURS: dict[str, Any] = {"default": TASKS["default"]}


def refreshed(result: Any) -> Any:
    result.refresh()
    return result


def configured(**options: Any) -> dict[str, Any]:
    """`TASKS` with these options, as a setting that travels."""
    return {"default": {**OURS["default"], "OPTIONS": options}}


def test_a_worker_runs_the_tasks_of_every_queue_without_being_told_of_any(shop: Shop) -> None:
    results = [
        tasks.meaning_of_life.enqueue(),
        tasks.meaning_of_life_async.using(queue_name="queue_1").enqueue(),
        tasks.result_id.using(priority=-5).enqueue(),
    ]
    output = shop.drain()
    assert "3 completed, 0 failed" in output
    assert [refreshed(result).return_value for result in results] == [42, 42, results[2].id]
    assert all(result.worker_ids[0] not in ("", None) for result in results)


def test_a_worker_of_one_queue_leaves_the_others(shop: Shop) -> None:
    here, there = tasks.noop.enqueue(), tasks.noop.using(queue_name="queue_1").enqueue()
    shop.drain("queue_1")
    assert (refreshed(here).status, refreshed(there).status) == (READY, SUCCESSFUL)


def test_a_drain_in_which_a_task_failed_exits_with_1(shop: Shop) -> None:
    result = tasks.fail_with_value_error.enqueue()
    shop.drain(code=1)
    assert refreshed(result).errors[0].exception_class is ValueError


def test_tasks_in_a_module_that_no_worker_imports_are_found_as_they_wait(shop: Shop) -> None:
    results = [unlisted.whisper.enqueue("HUSH"), unlisted.whisper_async.enqueue("HUSH")]
    shop.drain()
    assert [refreshed(result).return_value for result in results] == ["hush", "hush"]


def test_a_running_worker_finds_them_too(shop: Shop) -> None:
    process = shop.start("--poll", "0.5")
    first = tasks.noop.enqueue()
    wait_until(lambda: refreshed(first).status == SUCCESSFUL, 30)
    results = [unlisted.whisper.enqueue("HUSH"), unlisted.whisper_async.enqueue("HUSH")]
    wait_until(lambda: all(refreshed(result).status == SUCCESSFUL for result in results), 30)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_task_may_enqueue_one_that_the_worker_has_not_met(shop: Shop) -> None:
    result = tasks.enqueue_another.enqueue("HUSH")
    shop.drain()
    assert task_backends["default"].get_result(refreshed(result).return_value).return_value == "hush"


def test_a_task_that_nobody_can_import_stays_and_is_told_once(shop: Shop) -> None:
    gone, there = tasks.noop.enqueue(), tasks.noop.enqueue()
    WorkJob.objects.filter(id=int(gone.id)).update(kind="tests.tasks.shop.tasks.long_gone")
    other = tasks.noop.enqueue()
    WorkJob.objects.filter(id=int(other.id)).update(kind="os.system")
    output = shop.drain()
    assert [refreshed(result).status for result in (gone, other, there)] == [READY, READY, SUCCESSFUL]
    assert gone.attempts == 0
    assert output.count("tests.tasks.shop.tasks.long_gone wait, but it cannot be imported") == 1
    assert output.count("os.system wait, but it cannot be imported") == 1


def test_a_worker_serves_aliases_that_only_other_processes_use(shop: Shop) -> None:
    both = {"default": {"BACKEND": IMMEDIATE}, "later": {"BACKEND": BACKEND, "QUEUES": ["later"]}}
    with override_settings(TASKS={**both, "default": {**both["default"], "QUEUES": []}}):
        result = tasks.meaning_of_life.using(backend="later", queue_name="later").enqueue()
        shop.drain(tasks=both)
        assert refreshed(result).return_value == 42


def test_with_queues_empty_a_worker_serves_whatever_queue_has_tasks(shop: Shop) -> None:
    anything = {"default": {"BACKEND": BACKEND, "QUEUES": []}}
    with override_settings(TASKS=anything):
        results = [tasks.meaning_of_life.using(queue_name=name).enqueue() for name in ("default", "made up", "another")]
        shop.drain("another", tasks=anything)
        assert [refreshed(result).status for result in results] == [READY, READY, SUCCESSFUL]
        shop.drain(tasks=anything)
        assert [refreshed(result).return_value for result in results] == [42, 42, 42]


def test_options_reach_the_worker(shop: Shop) -> None:
    setting = configured(max_attempts=3, backoff="tests.tasks.shop.tasks.at_once", timeout=0.3)
    with override_settings(TASKS=setting):
        failing, slow, good = tasks.succeed_at.enqueue(9), tasks.sleep.enqueue(30), tasks.succeed_at_async.enqueue(3)
        shop.drain(tasks=setting, code=1)
        assert (refreshed(failing).status, failing.attempts) == (FAILED, 3)
        assert (refreshed(slow).status, slow.attempts) == (FAILED, 3)
        assert [error.exception_class.__name__ for error in slow.errors] == ["HandlerTimeout"] * 3
        assert refreshed(good).return_value == 3


if TAKES_KEYWORDS:

    def test_a_tasks_own_options_reach_the_worker(shop: Shop) -> None:
        result, slow = keywords.fail_three_times.enqueue(), keywords.sleep_for_long.enqueue()
        shop.drain(code=1)
        assert (refreshed(result).attempts, len(result.errors)) == (3, 3)
        assert refreshed(slow).errors[0].exception_class.__name__ == "HandlerTimeout"


def test_a_bad_option_keeps_the_worker_from_starting(shop: Shop) -> None:
    process = shop.start("--drain", tasks=configured(max_atempts=3))
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "there is no option 'max_atempts'; the nearest is 'max_attempts'" in output


def test_a_task_whose_worker_is_killed_has_failed_after_its_only_attempt(shop: Shop) -> None:
    setting = configured(lease=2)
    with override_settings(TASKS=setting):
        result, after = tasks.die_at_first.enqueue("once"), tasks.meaning_of_life.using(priority=-1).enqueue()
        shop.start("--concurrency", "1", tasks=setting)
        wait_until(lambda: refreshed(after).status == SUCCESSFUL, 30)
        wait_until(lambda: refreshed(result).status == FAILED, 30)
        assert (result.attempts, result.errors[0].exception_class.__name__) == (1, "LeaseLapsed")
        assert [words[0] for words in shop.notes] == ["began"]


def test_a_task_whose_worker_is_killed_is_run_again_if_it_has_attempts_left(shop: Shop) -> None:
    setting = configured(lease=2, max_attempts=2)
    with override_settings(TASKS=setting):
        result = tasks.die_at_first.enqueue("twice")
        shop.start(tasks=setting)
        wait_until(lambda: refreshed(result).status == SUCCESSFUL, 30)
        assert (result.return_value, result.attempts) == (2, 2)
        assert len(set(result.worker_ids)) == 2
        assert [words[2] for words in shop.notes] == ["1", "2"]
        assert result.started_at < result.last_attempted_at


def test_a_worker_that_is_asked_to_stop_lets_its_task_finish(shop: Shop) -> None:
    go = shop.log.with_name("go")
    result, waiting = tasks.wait_for.enqueue(str(go)), tasks.noop.using(priority=-1).enqueue()
    process = shop.start("--concurrency", "1")
    wait_until(lambda: refreshed(result).status == RUNNING, 30)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    go.touch()
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert (refreshed(result).return_value, refreshed(waiting).status, waiting.attempts) == ("seen", READY, 0)


def test_a_task_that_a_stop_cuts_off_is_given_back_uncounted(shop: Shop) -> None:
    result = tasks.wait_for.enqueue(str(shop.log.with_name("never")))
    process = shop.start("--shutdown-timeout", "0.2")
    wait_until(lambda: refreshed(result).status == RUNNING, 30)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert (refreshed(result).status, result.attempts, result.errors, result.started_at) == (READY, 0, [], None)


def test_a_cancelled_task_frees_its_worker(shop: Shop) -> None:
    result = tasks.sleep_async.enqueue(60)
    shop.start("--concurrency", "1")
    wait_until(lambda: refreshed(result).status == RUNNING, 30)
    assert JobQueue("default").cancel(int(result.id)) == 1
    after = tasks.noop_async.enqueue()
    wait_until(lambda: refreshed(after).status == SUCCESSFUL, 30)
    assert refreshed(result).status == FAILED


def test_several_worker_processes_share_the_tasks(shop: Shop) -> None:
    results = [tasks.write.enqueue(str(number)) for number in range(60)]
    shop.drain("--processes", "3")
    assert {refreshed(result).status for result in results} == {SUCCESSFUL}
    assert sorted(int(words[1]) for words in shop.notes) == list(range(60))
