"""Worker processes: `workqueue_work` as it is run, its supervisor, and how they end."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from django_workqueue import Queue
from tests import conftest as house
from tests.interleave import wait_until
from tests.worker.conftest import MakeQueue, Rows, Shop


def output_of(process: subprocess.Popen[str], *, within: float = 30) -> str:
    """What it printed, once it has ended."""
    return process.communicate(timeout=within)[0]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# The command


def test_drain_works_until_nothing_is_due_then_exits_0(shop: Shop, goods: Queue[str]) -> None:
    goods.enqueue_many(f"ok-{number}" for number in range(100))
    process = shop.start("--drain")
    assert "100 completed, 0 failed" in output_of(process)
    assert process.returncode == 0
    assert len(shop.notes("ended")) == 100


def test_drain_exits_1_if_something_failed(shop: Shop, goods: Queue[str]) -> None:
    goods.enqueue("ok-1", "fail-1")
    process = shop.start("--drain")
    assert "1 completed, 1 failed (1 to be retried)" in output_of(process)
    assert process.returncode == 1


def test_with_no_name_every_queue_that_has_a_handler_is_worked(
    shop: Shop, goods: Queue[str], make_queue: MakeQueue
) -> None:
    goods.enqueue("ok-1")
    make_queue("shop-async").enqueue("ok-2")
    assert "2 completed" in output_of(shop.start("--drain"))


def test_with_names_only_those_are_worked(shop: Shop, goods: Queue[str], make_queue: MakeQueue) -> None:
    goods.enqueue("ok-1")
    make_queue("shop-async").enqueue("ok-2")
    assert "1 completed" in output_of(shop.start("shop-async", "--drain"))
    assert [key for key, _, _ in shop.notes("ended")] == ["ok-2"]


def test_a_drain_whose_database_is_away_ends_within_bounds_and_says_so(shop: Shop) -> None:
    process = shop.start("--drain", "--processes", "2", SHOP_DATABASE="1", SHOP_GIVE_UP="1")
    said = output_of(process)
    assert process.returncode == 1
    assert "CommandError: database 'default' could not be used for 1 s, so not all that is due was done: " in said
    assert "Until then: 0 completed, 0 failed" in said
    assert "Traceback" not in said
    assert "starting another" not in said


def test_a_drain_on_a_database_without_our_tables_says_what_to_run_and_exits_1(shop: Shop) -> None:
    process = shop.start("--drain", "--max-seconds", "20", SHOP_DATABASE="bare")
    said = output_of(process)
    assert process.returncode == 1
    assert "CommandError: database 'default' has no tables of django_workqueue yet " in said
    assert ": run `manage.py migrate`. Until then: 0 completed" in said
    assert "Traceback" not in said


def test_a_drain_whose_time_is_up_while_its_database_is_away_exits_1(shop: Shop) -> None:
    process = shop.start("--drain", "--max-seconds", "1", SHOP_DATABASE="1")
    said = output_of(process)
    assert process.returncode == 1
    assert "CommandError: database 'default' could not be used in the end, so not all that is due was done: " in said


def test_a_drain_whose_time_is_up_before_its_database_answers_exits_1(shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = shop.start("--drain", "--max-seconds", "1", SHOP_DATABASE=str(silent.getsockname()[1]))
        said = output_of(process)
    assert process.returncode == 1
    assert "CommandError: database 'default' has not answered in time, so not all that is due was done. " in said


def test_a_drain_that_is_stopped_while_its_database_is_away_exits_0(shop: Shop) -> None:
    process = shop.start("--drain", SHOP_DATABASE="1")
    assert process.stdout is not None
    first = process.stdout.readline()
    process.terminate()
    said = first + output_of(process)
    assert "started" in said
    assert process.returncode == 0


def test_a_drain_whose_time_is_up_with_work_left_exits_0(shop: Shop, goods: Queue[str]) -> None:
    goods.enqueue_many(f"sleep-0.5-{number}" for number in range(10))
    process = shop.start("--drain", "--max-seconds", "1", "--concurrency", "1")
    assert "0 failed" in output_of(process)
    assert process.returncode == 0
    assert goods.stats().ready


def test_an_unknown_name_is_a_command_error_that_lists_the_known_ones(shop: Shop) -> None:
    process = shop.start("nowhere")
    said = output_of(process)
    assert process.returncode == 1
    assert "CommandError: no handler is registered for a queue 'nowhere'. Queues that have one: " in said
    assert (
        "looked for in tasks.py of each installed app (WORKQUEUE_AUTODISCOVER); there is: tests.worker.shop.tasks."
        in said
    )
    assert "'shop-async', 'shop-impatient', 'shop-jobs', 'shop-sync'" in said
    assert "Traceback" not in said


def test_an_unknown_alias_is_a_command_error_that_lists_the_known_ones(shop: Shop) -> None:
    process = shop.start("--database", "nowhere")
    said = output_of(process)
    assert process.returncode == 1
    assert "CommandError: the connection 'nowhere' doesn't exist. Those there are: default" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("arguments", [[], ["--drain"], ["--processes", "2"]])
@pytest.mark.parametrize(
    ("path", "how"),
    [
        ("no_such_module.timing", "imported: No module named 'no_such_module'"),
        ("tests.worker.shop.tasks.nothing", "imported: Module"),
        ("tests.worker.shop.tasks.refuse", "made: there is no shop"),
    ],
)
def test_middleware_that_cannot_be_imported_or_made_is_a_command_error(
    shop: Shop, path: str, how: str, arguments: list[str]
) -> None:
    process = shop.start(*arguments, "--skip-checks", SHOP_MIDDLEWARE=path)  # which find what cannot be imported
    said = output_of(process)
    assert process.returncode == 1
    assert f"CommandError: middleware {path} cannot be {how}" in said
    assert "Traceback" not in said
    assert "starting another" not in said


def test_no_handler_at_all_is_a_command_error_that_says_what_to_do(shop: Shop) -> None:
    process = shop.start(SHOP_AUTODISCOVER="")
    said = output_of(process)
    assert process.returncode == 1
    assert "CommandError: no handler is registered for any queue. " in said
    assert "@queue.handler, in a module that your project imports (WORKQUEUE_AUTODISCOVER is None)" in said


@pytest.mark.parametrize(
    "arguments", [["--processes", "0"], ["--concurrency", "x"], ["--poll", "0"], ["--shutdown-timeout", "-1"]]
)
def test_nonsensical_options_are_refused_by_name(shop: Shop, arguments: list[str]) -> None:
    process = shop.start(*arguments)
    assert arguments[0] in output_of(process)
    assert process.returncode == 2


@pytest.mark.parametrize(
    "options", [["--processes", "2"], ["--drain"], ["--max-items", "1"], ["--max-seconds", "1"]], ids=" ".join
)
def test_what_does_not_go_with_reload_is_refused(shop: Shop, options: list[str]) -> None:
    process = shop.start("--reload", *options)
    assert f"CommandError: {options[0]} does not go with --reload" in output_of(process)
    assert process.returncode == 1


@pytest.mark.parametrize("module", ["models", "urls", "tasks"])  # set up by Django, checked, found by us
@pytest.mark.timeout(180)
def test_reload_outlives_code_that_cannot_be_imported_and_goes_on_when_it_is_mended(
    shop: Shop, goods: Queue[str], tmp_path: Path, module: str
) -> None:
    app = tmp_path / "fragile"
    app.mkdir()
    for name in ("__init__", "models", "tasks", "urls"):
        (app / f"{name}.py").write_text("urlpatterns = []\n")
    (tmp_path / "fragile_settings.py").write_text(
        "from tests.worker.settings import *\n"
        "INSTALLED_APPS = [*INSTALLED_APPS, 'fragile']\n"
        "ROOT_URLCONF = 'fragile.urls'\n"
    )
    said = tmp_path / "said"
    process = shop.start(
        "shop-sync",
        "--reload",
        redirect=f'> "{said}" 2>&1',
        DJANGO_SETTINGS_MODULE="fragile_settings",
        PYTHONPATH=f"{tmp_path}{os.pathsep}{house.PROJECT}",
    )
    goods.enqueue("ok-1")
    shop.wait_for("ended", "ok-1")

    def rewrite(text: str, came: Callable[[], bool]) -> None:
        """Change the module until that is noticed: a change just before the reloader's first look is not."""
        for _ in range(12):
            (app / f"{module}.py").write_text(text)
            with suppress(AssertionError):
                wait_until(came, 5)
                return
        raise AssertionError(said.read_text())

    rewrite("urlpatterns = [\n", lambda: "SyntaxError" in said.read_text())
    assert process.poll() is None
    goods.enqueue("ok-2")
    rewrite("urlpatterns = []\n", lambda: len(shop.notes("ended")) == 2)
    assert process.poll() is None


@pytest.mark.parametrize(
    ("signum", "whole_group"), [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGINT, True)]
)
def test_reload_gives_back_what_is_in_hand_when_it_is_told_to_end(
    shop: Shop, goods: Queue[str], rows: Rows, signum: int, whole_group: bool
) -> None:
    process = shop.start("shop-sync", "--reload", "--concurrency", "1", group=True)
    goods.enqueue("sleep-60", "sleep-60-too")
    child = int(wait_until(lambda: [pid for _, _, pid in shop.notes("started")], 30)[0])
    assert goods.stats().leased
    if whole_group:  # as Ctrl-C on a terminal does
        os.killpg(process.pid, signum)
    else:
        process.send_signal(signum)
    output_of(process)
    assert process.returncode == 0
    assert not Path(f"/proc/{child}").exists()
    assert {key: (row.lease_token, row.attempts) for key, row in rows(goods).items()} == {
        "sleep-60": (0, 0),
        "sleep-60-too": (0, 0),
    }


def test_reload_told_twice_to_end_does_not_wait(shop: Shop, goods: Queue[str]) -> None:
    process = shop.start("shop-sync", "--reload")
    goods.enqueue("gil-60")
    child = shop.wait_for("started", "gil-60")
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.terminate()
    assert process.wait(5) == 0
    assert not Path(f"/proc/{child}").exists()


def test_database_keeps_to_the_queues_of_one_alias(shop: Shop) -> None:
    process = shop.start("--drain", "--database", "other")
    assert "no handler is registered for any queue on database 'other'. " in output_of(process)
    assert process.returncode == 1


def test_max_items_ends_it_after_so_many(shop: Shop, goods: Queue[str]) -> None:
    goods.enqueue_many(f"ok-{number}" for number in range(100))
    process = shop.start("--max-items", "31", "--processes", "2")
    assert "31 completed" in output_of(process)
    assert process.returncode == 0
    assert goods.stats().ready == 69


def test_max_seconds_ends_it_after_so_long(shop: Shop, goods: Queue[str]) -> None:
    goods.enqueue("sleep-1.5")
    process = shop.start("--max-seconds", "1")
    assert "1 completed" in output_of(process)
    assert process.returncode == 0


def test_it_says_when_it_starts_and_stops_and_is_quiet_between(shop: Shop, goods: Queue[str]) -> None:
    process = shop.start("shop-sync", "--max-seconds", "1", "--concurrency", "3", "--poll", "0.1")
    lines = output_of(process).splitlines()
    assert len(lines) == 4
    assert "started: shop-sync; concurrency 3" in lines[0]
    assert "stopping" in lines[1]
    assert "stopped: 0 completed" in lines[2]


def settling() -> int:
    """How many connections write outcomes."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'django_workqueue settle'"
        )
        return int(cursor.fetchone()[0])


# The supervisor


def test_each_process_works_and_forks_before_any_connection_or_thread_exists(shop: Shop, goods: Queue[str]) -> None:
    process = shop.start("--processes", "2", PYTHONWARNINGS="error::DeprecationWarning:django_workqueue")
    wait_until(lambda: len(children_of(process.pid)) == 2)
    goods.enqueue_many(f"sleep-0.02-{number}" for number in range(200))
    wait_until(lambda: goods.stats().completed == 200, 20)
    assert {pid for _, _, pid in shop.notes("ended")} == set(children_of(process.pid))
    process.terminate()
    assert "200 completed" not in output_of(process) or process.returncode == 0
    assert process.returncode == 0


def test_a_process_that_dies_is_replaced_and_its_items_run_again_after_their_lease(
    shop: Shop, goods: Queue[str]
) -> None:
    process = shop.start(lease=2)
    goods.enqueue("kill-now")
    first = shop.wait_for("started", "kill-now")
    second = shop.wait_for("ended", "kill-now", attempt=2)
    assert first != second
    assert children_of(process.pid) == [second]
    process.terminate()
    said = output_of(process)
    assert f"worker process {first} was killed by SIGKILL; starting another in" in said
    assert process.returncode == 0


def test_an_unflushed_completion_at_a_crash_is_simply_run_again(
    shop: Shop, goods: Queue[str], second: psycopg.Connection[object]
) -> None:
    shop.start("--poll", "0.2", lease=2)
    with second.transaction():
        goods.enqueue("sleep-1.5")
        pid = shop.wait_for("started", "sleep-1.5")
        second.execute("SELECT 1 FROM workqueue_item WHERE queue = 'shop-sync' FOR UPDATE")
        shop.wait_for("ended", "sleep-1.5")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not settling())  # what it has sent is still under way until the server gives up on the lock
    shop.wait_for("ended", "sleep-1.5", attempt=2)
    wait_until(lambda: goods.stats().completed == 1)


def test_a_process_that_cannot_be_forked_for_now_is_started_later(shop: Shop) -> None:
    process = shop.start("--processes", "2", SHOP_SECOND_FORK_FAILS="1")
    wait_until(lambda: len(children_of(process.pid)) == 2)
    process.terminate()
    said = output_of(process)
    assert "a worker process cannot be started: " in said
    assert "Traceback" not in said
    assert process.returncode == 0


def test_a_handler_that_holds_the_gil_is_renewed_by_the_supervisor(shop: Shop, goods: Queue[str]) -> None:
    shop.start("--processes", "2", "--poll", "0.1", lease=1)
    goods.enqueue("gil-4", "gil-4-too")
    shop.wait_for("ended", "gil-4")
    shop.wait_for("ended", "gil-4-too")
    wait_until(lambda: goods.stats().completed == 2)
    assert [attempt for _, attempt, _ in shop.notes("started")] == [1, 1]


def test_a_handler_that_blocks_the_event_loop_is_renewed(shop: Shop, make_queue: MakeQueue, goods: Queue[str]) -> None:
    queue = make_queue("shop-async")
    shop.start("--processes", "2", "--poll", "0.1", lease=1)
    queue.enqueue("block-3")
    shop.wait_for("ended", "block-3")
    wait_until(lambda: queue.stats().completed == 1)
    assert len(shop.notes("started")) == 1


def test_a_process_is_replaced_when_half_its_slots_have_leaked(shop: Shop, make_queue: MakeQueue) -> None:
    queue = make_queue("shop-impatient")
    process = shop.start("shop-impatient", "--concurrency", "2", "--shutdown-timeout", "0.2", lease=1)
    queue.enqueue("ignore-60")
    first = shop.wait_for("started", "ignore-60")
    queue.remove("ignore-60")
    wait_until(lambda: children_of(process.pid) not in ([], [first]), 20)
    queue.enqueue("ok-1")
    assert shop.wait_for("ended", "ok-1") != first
    process.terminate()
    assert "1 of 2 handler threads were lost" in output_of(process)


def test_a_silent_process_is_killed_and_replaced_once_its_timeouts_are_over(shop: Shop, make_queue: MakeQueue) -> None:
    queue = make_queue("shop-impatient")
    process = shop.start("shop-impatient", lease=1)
    queue.enqueue("gil-60")
    first = shop.wait_for("started", "gil-60")
    wait_until(lambda: children_of(process.pid) not in ([], [first]), 30)
    queue.remove("gil-60")
    process.terminate()
    assert f"worker process {first} has been silent" in output_of(process)


def test_children_stop_when_their_supervisor_is_gone(shop: Shop, goods: Queue[str]) -> None:
    process = shop.start(lease=1)
    goods.enqueue("sleep-3")
    child = shop.wait_for("started", "sleep-3")
    process.kill()
    shop.wait_for("ended", "sleep-3")
    wait_until(lambda: not Path(f"/proc/{child}").exists())
    assert goods.stats().completed == 1
    assert [attempt for _, attempt, _ in shop.notes("started")] == [1]


# Signals


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_idle_ends_it_at_once_with_0(shop: Shop, goods: Queue[str], signum: int) -> None:
    process = shop.start("--processes", "2")
    goods.enqueue("ok-1")
    shop.wait_for("ended", "ok-1")
    begun = time.monotonic()
    process.send_signal(signum)
    assert "1 completed" in output_of(process)
    assert process.returncode == 0
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("redirect", [">/dev/full", "2>/dev/full", ">/dev/full 2>&1", ">&-", ">&- 2>&-"])
def test_a_signal_ends_it_with_0_also_where_nothing_can_be_printed(
    shop: Shop, goods: Queue[str], redirect: str
) -> None:
    process = shop.start(redirect=redirect)
    goods.enqueue("ok-1")
    shop.wait_for("ended", "ok-1")
    process.send_signal(signal.SIGTERM)
    output_of(process)
    assert process.returncode == 0


def test_a_signal_ends_it_with_0_also_where_nobody_reads_what_it_prints(shop: Shop, goods: Queue[str]) -> None:
    process = shop.start()
    goods.enqueue("ok-1")
    shop.wait_for("ended", "ok-1")
    assert process.stdout is not None
    process.stdout.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 0


def test_a_signal_in_a_handler_lets_it_finish(shop: Shop, goods: Queue[str]) -> None:
    process = shop.start()
    goods.enqueue("sleep-2")
    shop.wait_for("started", "sleep-2")
    process.terminate()
    assert "1 completed" in output_of(process)
    assert process.returncode == 0
    assert goods.stats().completed == 1


def test_a_signal_to_the_whole_process_group_asks_only_once(shop: Shop, goods: Queue[str]) -> None:
    """As a service manager sends SIGTERM to each process, and a terminal SIGINT."""
    process = shop.start()
    goods.enqueue("sleep-2")
    child = shop.wait_for("started", "sleep-2")
    os.kill(child, signal.SIGINT)
    os.kill(child, signal.SIGTERM)
    process.terminate()
    assert "1 completed" in output_of(process)
    assert process.returncode == 0


def test_a_signal_between_claim_and_start_gives_back_what_was_not_started(
    shop: Shop, goods: Queue[str], rows: Rows
) -> None:
    process = shop.start("--concurrency", "2", "--shutdown-timeout", "0.5")
    goods.enqueue_many(f"sleep-20-{number}" for number in range(20))
    wait_until(lambda: len(shop.notes("started")) == 2)
    process.terminate()
    output_of(process)
    assert process.returncode == 0
    assert {row.attempts for row in rows(goods).values()} == {0}
    assert goods.stats().ready == 20


def test_a_handler_that_ignores_everything_does_not_keep_the_process(shop: Shop, goods: Queue[str], rows: Rows) -> None:
    process = shop.start("--shutdown-timeout", "1")
    goods.enqueue("ignore-60")
    shop.wait_for("started", "ignore-60")
    begun = time.monotonic()
    process.terminate()
    output_of(process)
    assert time.monotonic() - begun < 6
    assert process.returncode == 0
    assert (goods.stats().ready, rows(goods)["ignore-60"].attempts) == (1, 0)


def test_a_handler_that_holds_the_gil_does_not_keep_the_process(shop: Shop, goods: Queue[str]) -> None:
    process = shop.start("--shutdown-timeout", "0.5")
    goods.enqueue("gil-60")
    shop.wait_for("started", "gil-60")
    begun = time.monotonic()
    process.terminate()
    assert "did not stop in time: killing it" in output_of(process)
    assert time.monotonic() - begun < 10
    assert process.returncode == 0


def test_a_second_signal_exits_at_once(shop: Shop, goods: Queue[str]) -> None:
    process = shop.start()
    goods.enqueue("sleep-20")
    child = shop.wait_for("started", "sleep-20")
    process.terminate()
    wait_until(lambda: goods.stats().leased == 1)
    time.sleep(0.2)
    process.terminate()
    begun = time.monotonic()
    process.wait(10)
    assert time.monotonic() - begun < 3
    assert process.returncode == 128 + signal.SIGTERM
    wait_until(lambda: not Path(f"/proc/{child}").exists())


def test_a_signal_during_start_up_is_honoured(shop: Shop, goods: Queue[str], tmp_path: Path) -> None:
    """Sent while the handlers' modules are being imported."""
    fifo = tmp_path / "importing"
    os.mkfifo(fifo)
    goods.enqueue("ok-1")
    process = shop.start(SHOP_IMPORT_WAITS_ON=str(fifo))
    with fifo.open("w"):  # opens when the module has come to reading it
        process.terminate()
        time.sleep(0.2)
    assert "0 completed" in output_of(process)
    assert process.returncode == 0
    assert shop.notes("started") == []


def test_sigterm_ends_a_worker_run_from_python_in_order(shop: Shop, goods: Queue[str]) -> None:
    script = (
        "import django; django.setup()\n"
        "from tests.worker.shop import tasks\n"
        "from django_workqueue.worker import Worker\n"
        "print(Worker([tasks.sync]).run())\n"
    )
    env = os.environ | house.environment() | {
        "DJANGO_SETTINGS_MODULE": "tests.worker.settings", "SHOP_LOG": str(shop.log), "PYTHONPATH": str(house.PROJECT),
    }  # fmt: skip
    import sys

    process = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True)
    shop.started.append(process)
    goods.enqueue("sleep-1")
    shop.wait_for("started", "sleep-1")
    process.terminate()
    assert output_of(process).strip() == "1 completed, 0 failed (0 to be retried), 0 reclaimed"
    assert process.returncode == 0


def test_the_leases_of_a_stopped_process_lapse_and_the_woken_straggler_is_fenced(shop: Shop, goods: Queue[str]) -> None:
    process = shop.start("--processes", "2", "--concurrency", "1", "--poll", "0.2", lease=2)
    wait_until(lambda: len(children_of(process.pid)) == 2)
    goods.enqueue("sleep-1.5")
    stopped = shop.wait_for("started", "sleep-1.5")
    os.kill(stopped, signal.SIGSTOP)
    other = shop.wait_for("ended", "sleep-1.5", attempt=2)
    wait_until(lambda: goods.stats().completed == 1)
    os.kill(stopped, signal.SIGCONT)
    shop.wait_for("ended", "sleep-1.5", attempt=1)
    assert other != stopped
    goods.enqueue("ok-1", "ok-2")
    wait_until(lambda: goods.stats().completed == 3)
    process.terminate()
    assert "3 completed" in output_of(process)
