"""The group commit when its process forks or ends. Each test is a script of its own, in a process of its own."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent

Script = Callable[..., "subprocess.CompletedProcess[str]"]

BEGIN = """
import asyncio, atexit, logging, multiprocessing, os, sys, threading, time, warnings
from concurrent.futures import ThreadPoolExecutor
from django_workqueue.batcher import process
from django_workqueue.exceptions import EnqueueTimeout
from tests.recorder import Connection, Gone, Recorder, new_batcher
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
logging.basicConfig(stream=sys.stdout, format="log: %(message)s")
class Loud(Recorder):
    def write(self, entries):
        super().write(entries)
        print(self.name, *entries, flush=True)
connection = Connection()
batcher = new_batcher(connection)
lane = Loud()

def until(predicate):
    deadline = time.monotonic() + 10
    while not predicate():
        assert time.monotonic() < deadline
        time.sleep(0.001)

told = []

def aside(*entries, submit=batcher.submit):
    def run():
        try:
            submit(lane, entries)
        except Exception as error:
            told.append(type(error).__name__)
        else:
            told.append(*entries)
    threading.Thread(target=run, daemon=True).start()

def in_child(work):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            logging.exception("in the child")
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


@pytest.fixture
def script(tmp_path: Path) -> Script:
    def run(body: str, *, code: int = 0) -> "subprocess.CompletedProcess[str]":
        file = tmp_path / "script.py"
        file.write_text(BEGIN + textwrap.dedent(body))
        done = subprocess.run(
            [sys.executable, file],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env={"PYTHONPATH": str(PROJECT), "PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


# Forks


def test_a_child_begins_afresh_and_leaves_the_parents_connection_alone(script: Script) -> None:
    done = script("""
        batcher.submit(lane, ["parent"], 10)

        def child():
            assert connection.forgotten == 1 and connection.dropped == 0
            assert batcher._thread._thread is None
            batcher.submit(lane, ["child"], 10)
            assert batcher._thread._thread is not None

        in_child(child)
        assert connection.forgotten == 0
        batcher.submit(lane, ["parent again"], 10)
    """)

    assert done.stdout.split("\n")[:3] == ["tiles parent", "tiles child", "tiles parent again"]


def test_a_fork_during_a_write_leaves_the_parents_entries_to_the_parent_and_the_child_unhindered(
    script: Script,
) -> None:
    done = script("""
        lane.hold()
        aside("in flight")
        lane.wait_for_write()
        aside("in line")
        until(lambda: batcher._lines.calls == 1)
        batcher._lock.acquire()  # as if another thread had been lining up just then

        def child():
            lane.let_go()
            batcher.submit(lane, ["child"], 10)
            assert batcher.flush(10)

        in_child(child)
        batcher._lock.release()
        lane.let_go()
        until(lambda: sorted(told) == ["in flight", "in line"])
    """)

    assert done.stdout.count("tiles child") == 1
    assert done.stdout.count("tiles in flight") == 1
    assert done.stdout.count("tiles in line") == 1


def test_a_fork_of_which_python_is_not_told_is_noticed_by_the_next_call(script: Script) -> None:
    script("""
        import ctypes

        batcher.submit(lane, ["parent"], 10)
        lane.hold()
        aside("in flight")
        lane.wait_for_write()
        pid = ctypes.PyDLL(None).fork()
        if not pid:
            lane.let_go()
            batcher.submit(lane, ["child"], 10)
            os._exit(0 if connection.forgotten == 1 and lane.written == ["parent", "child"] else 1)
        assert os.waitpid(pid, 0)[1] == 0
        lane.let_go()
    """)


def test_a_child_of_a_child_and_a_closed_batcher_are_no_exceptions(script: Script) -> None:
    script("""
        batcher.submit(lane, ["parent"], 10)
        closed = new_batcher()
        closed.close()

        def grandchild():
            batcher.submit(lane, ["grandchild"], 10)
            try:
                closed.submit(lane, ["x"], 10)
            except Exception as error:
                assert type(error).__name__ == "QueueClosed"
            else:
                raise AssertionError

        def child():
            batcher.submit(lane, ["child"], 10)
            in_child(grandchild)

        in_child(child)
        batcher.submit(lane, ["parent again"], 10)
    """)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works_by_every_start_method(script: Script, method: str) -> None:
    done = script(f"""
        def child(n):
            for entry in range(20):
                batcher.submit(lane, [(n, entry)], 10)
            assert lane.written[-20:] == [(n, entry) for entry in range(20)]

        if __name__ == "__main__":
            batcher.submit(lane, ["parent"], 10)
            context = multiprocessing.get_context("{method}")
            children = [context.Process(target=child, args=(n,)) for n in range(3)]
            for each in children:
                each.start()
            for each in children:
                each.join(30)
            assert [each.exitcode for each in children] == [0, 0, 0]
            batcher.submit(lane, ["parent again"], 10)
    """)

    assert done.stdout.count("tiles (") == 60


# Exit


def test_the_exit_writes_what_nobody_waits_for(script: Script) -> None:
    done = script("""
        lane.hold()
        aside("daemon")
        lane.wait_for_write()
        batcher.post(lane, ["posted"])
        try:
            batcher.submit(lane, ["late"], 0.01)
        except EnqueueTimeout:
            lane.let_go()
    """)

    assert "tiles daemon" in done.stdout
    assert "tiles posted late" in done.stdout


def test_the_exit_answers_every_waiter(script: Script) -> None:
    script("""
        atexit.register(lambda: until(lambda: sorted(told) == ["task", "thread"]))
        lane.hold()
        aside("thread")
        lane.wait_for_write()
        aside("task", submit=lambda lane, entries: asyncio.run(batcher.asubmit(lane, entries)))
        until(lambda: batcher._lines.calls == 1)
        atexit.register(lane.let_go)
    """)


def test_threads_and_executors_that_outlive_the_main_thread_are_served(script: Script) -> None:
    done = script("""
        main_ended = threading.Event()
        pool = ThreadPoolExecutor(2)

        def late(name):
            main_ended.wait(10)
            for n in range(20):
                batcher.submit(lane, [f"{name}{n}"], 10)
            print(name, "done", flush=True)

        threading.Thread(target=late, args=("thread",)).start()
        pool.submit(late, "pool")
        threading._register_atexit(main_ended.set)
    """)

    assert "thread done" in done.stdout
    assert "pool done" in done.stdout


def test_a_first_call_when_no_thread_can_start_any_more_is_written_where_it_is(script: Script) -> None:
    done = script("""
        def last():
            dropped = connection.dropped
            batcher.submit(lane, ["last"], 10)
            print(*lane.tally.threads, connection.dropped - dropped, flush=True)

        atexit.register(last)
        other = new_batcher()
        other.submit(Recorder(), ["x"], 10)
    """)

    assert "tiles last\nMainThread 1" in done.stdout


def test_calls_after_the_exit_flush_are_written_where_they_are(script: Script) -> None:
    done = script("""
        atexit.register(lambda: batcher.submit(lane, ["afterwards"], 10))
        batcher.submit(lane, ["before"], 10)
    """)

    assert "tiles before\ntiles afterwards" in done.stdout


def test_a_dead_database_holds_up_the_exit_for_a_bounded_time_and_what_was_lost_is_logged(script: Script) -> None:
    done = script("""
        process.EXIT_PATIENCE = 0.3
        lane.fails = lambda entries: Gone()
        other = Recorder("mail", fails=lambda entries: Gone())
        assert batcher.post(lane, [1, 2, 3]) == 3
        assert batcher.post(other, [4]) == 1
    """)

    assert "log: test-batcher: gave up on 1 entries of queue 'mail'" in done.stdout
    assert "log: test-batcher: gave up on 3 entries of queue 'tiles'" in done.stdout


def test_a_write_that_hangs_holds_up_the_exit_for_a_bounded_time_and_its_callers_are_told(script: Script) -> None:
    done = script("""
        process.EXIT_PATIENCE = 0.3
        atexit.register(lambda: until(lambda: told == ["EnqueueTimeout"]))
        lane.hold()
        aside("stuck")
        lane.wait_for_write()
    """)

    assert "gave up on 1 entries" in done.stdout


@pytest.mark.skipif(sys.version_info < (3, 13), reason="older children of a fork run no exit functions")
def test_a_multiprocessing_child_writes_at_its_exit_what_nobody_waits_for(script: Script) -> None:
    done = script("""
        def child():
            lane.hold()
            threading.Timer(0.2, lane.let_go).start()
            batcher.post(lane, ["posted"])

        batcher.submit(lane, ["parent"], 10)
        each = multiprocessing.get_context("fork").Process(target=child)
        each.start()
        each.join(30)
        assert each.exitcode == 0
    """)

    assert "tiles posted" in done.stdout
