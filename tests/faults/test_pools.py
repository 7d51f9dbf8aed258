"""Poolers: pgbouncer in transaction mode, and Django's own pool of psycopg connections."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testproject import postgres

from .conftest import MakeStage, Report
from .stage import QUEUES, Stage, scaled

CONFIGURATION = """
[databases]
* = host={socket} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 500
ignore_startup_parameters = extra_float_digits,options
logfile = {folder}/pgbouncer.log
"""


@contextlib.contextmanager
def pgbouncer(server: postgres.Server, folder: Path) -> Iterator[str]:
    """The address of a pgbouncer in front of a server; skips where there is none installed."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    home = server.home / "pgbouncer"  # which the server's account can reach
    home.mkdir()
    configuration = home / "pgbouncer.ini"
    configuration.write_text(CONFIGURATION.format(socket=server.socket, port=port, folder=home))
    if server.account:
        shutil.chown(home, server.account.pw_uid, server.account.pw_gid)
    process = subprocess.Popen([program, "-q", str(configuration)], cwd="/", **postgres.as_account(server.account))
    try:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"postgresql://postgres@127.0.0.1:{port}/workqueue?sslmode=disable"
    finally:
        process.terminate()
        process.wait(20)


def most_sessions(stage: Stage, deadline: float = 120) -> int:
    """Until all is done, the most sessions at once that the server had of anybody but us."""
    most, until = 0, time.monotonic() + deadline
    with stage.session() as session:
        while not stage.is_over() and time.monotonic() < until:
            row = session.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchone()
            most = max(most, row[0] if row else 0)
            time.sleep(0.1)
    return most


@pytest.mark.timeout(300)
@pytest.mark.parametrize("listens", [False, True], ids=["", "listen_database"])
def test_all_works_through_pgbouncer_in_transaction_mode(
    make_stage: MakeStage, report: Report, tmp_path: Path, listens: bool
) -> None:
    server = postgres.throwaway().start()
    with pgbouncer(server, tmp_path) as url:
        stage = make_stage(server=server, url=url)
        env = {"FAULTS_PGBOUNCER": "1"} | ({"FAULTS_LISTEN_URL": server.url} if listens else {})
        for _ in range(2):
            stage.work("--processes", "2", **env)
        stage.produce(*QUEUES, "--count", str(scaled(1000)), "--threads", "4", "--atomic", **env)
        most = most_sessions(stage)
        figures = stage.finish(more={"server_sessions": most})
        assert "prepared statement" not in stage.said()
        report(figures)


@pytest.mark.timeout(300)
def test_two_hundred_threads_hold_a_bounded_number_of_connections(stage: Stage, report: Report) -> None:
    """With Django's pool of 10: outside `atomic()` nobody takes one of it; all share the batcher's one."""
    stage.work("--processes", "1", FAULTS_POOL="10")
    stage.produce("faults-keys", "faults-jobs", "--count", str(scaled(4000)), "--threads", "100", FAULTS_POOL="10")
    most = most_sessions(stage)
    assert most < 40
    report(stage.finish(more={"threads": 200, "server_sessions": most}))
