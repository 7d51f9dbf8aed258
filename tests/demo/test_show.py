"""`manage.py demo`: what it starts, says, and stops."""

import os
import re
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest
from django.db import connection

from testproject.tiles.demo.errors import DemoError, PortTakenError
from testproject.tiles.demo.mailing import Mailing
from testproject.tiles.demo.show import Show
from testproject.tiles.demo.visitor import Visitor
from testproject.tiles.demo.webserver import WebServer
from testproject.tiles.demo.workers import Workers
from testproject.tiles.queues import letters, tiles


class NoWorkers(Workers):
    """A worker that is there, as far as one can see, and does nothing."""

    def start(self):
        pass

    def ended(self):
        return None


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def databases():
    with connection.cursor() as cursor:
        cursor.execute("SELECT datname FROM pg_database WHERE datname LIKE 'demo_check_%'")
        return [name for (name,) in cursor.fetchall()]


def children(pid):
    """The processes whose parent is `pid`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid:
                found.append(int(process.name))
    return found


def said_until(process, text):
    """Read what the process says, up to a line with `text`."""
    said = ""
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"ended with {process.wait()} and said: {said}")


@pytest.mark.timeout(150)
def test_the_check_renders_a_screenful_and_leaves_nothing_behind(manage):
    before = databases()
    process = manage("demo", "--check")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert re.match(r"48 tiles in [\d.]+ s, 48 of them rendered by 2 processes; queue: ready 0, leased 0, .*", said)
    assert "; 2 mails sent, after 2 failed attempts, and 1 dead letter. " in said
    assert "rendered once" in said
    assert databases() == before
    assert tiles.stats().completed == 0
    assert letters.stats().stalled == 0


@pytest.mark.timeout(150)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_the_demo_serves_until_it_is_told_to_stop_and_stops_what_it_started(manage, wait_until, number):
    process = manage("demo", "--port", "0", env={"PYTHONUNBUFFERED": "1"})
    said = said_until(process, "Ctrl-C")
    assert "48 tiles in" in said
    assert re.search(r"Map +http://127\.0\.0\.1:\d+/\n", said)
    assert re.search(r"Mail +http://127\.0\.0\.1:\d+/mail/\n", said)
    assert re.search(r"Activity +http://127\.0\.0\.1:\d+/activity/\n", said)
    assert re.search(r"Admin +http://127\.0\.0\.1:\d+/demo/login/", said)
    port = int(re.search(r"127\.0\.0\.1:(\d+)", said)[1])
    (worker,) = children(process.pid)
    renderers = children(worker)
    assert len(renderers) >= 2

    process.send_signal(number)
    rest, _ = process.communicate(timeout=30)

    assert process.returncode == 0, rest
    assert "Stopped." in rest
    assert "Traceback" not in rest
    for pid in (worker, *renderers):
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.timeout(150)
def test_the_demo_ends_and_says_so_when_its_worker_dies(manage):
    process = manage("demo", "--port", "0", env={"PYTHONUNBUFFERED": "1"})
    said_until(process, "Ctrl-C")
    (worker,) = children(process.pid)
    os.killpg(worker, signal.SIGKILL)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "The worker has ended" in said


def test_a_taken_port_is_one_sentence_that_says_what_to_do(manage, taken):
    process = manage("demo", "--port", str(taken))
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said == (
        f"CommandError: Port {taken} is taken: stop what listens there, or choose another one, "
        f"as in: make demo ARGS='--port {taken + 1}'\n"
    )


@pytest.mark.parametrize("port", ["nine", "65536", "-1"])
def test_a_port_that_is_none_is_refused(manage, port):
    process = manage("demo", f"--port={port}")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "is not a port" in said


def test_a_server_keeps_others_off_its_port(taken):
    with pytest.raises(PortTakenError, match=str(taken)):
        WebServer(taken)


@pytest.mark.django_db(transaction=True)
def test_tiles_that_do_not_come_are_reported_missing():
    with WebServer(0) as server:
        result = Show(server, NoWorkers(processes=1)).open(deadline=time.monotonic())
    assert result.tiles == 0
    assert len([fault for fault in result.faults if "missing" in fault]) == 48
    assert result.queue.ready == 48


@pytest.mark.django_db(transaction=True)
def test_mails_that_do_not_arrive_are_reported(tmp_path):
    with WebServer(0) as server:
        mailed = Mailing(Visitor(server.url, deadline=time.monotonic()), tmp_path).outcome()
    assert mailed.arrived == []
    assert len(mailed.faults) == 3
    assert "mails arrived for nobody instead of ada@example.com, busy@example.com" in mailed.faults
    assert letters.stats().ready == 3


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_ends_is_not_waited_for():
    with WebServer(0) as server, Workers(processes=2, environment={"DATABASE_URL": "mysql://nowhere"}) as workers:
        workers.wait()
        with pytest.raises(DemoError, match="exit status 1"):
            Show(server, workers).open(deadline=time.monotonic() + 60)
