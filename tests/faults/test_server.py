"""The server: killed and restarted, its sessions ended one by one, full, out of disk, and replaced by its standby."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from testproject import postgres
from tests.interleave import wait_until

from .checker import Rules
from .conftest import MakeStage, Report
from .network import Network
from .stage import QUEUES, Stage, scaled

# A server that crashes, or is replaced, forgets claims that had not reached the disk; a completion on its way to one of
# them finds the lease gone, and the job runs again.
FORGETFUL = Rules(afterwards=True)

OURS = "application_name LIKE 'django_workqueue %'"


def load(stage: Stage, *, each: int, seconds: float, workers: int = 2, **env: str) -> None:
    """Workers, and a producer that keeps them busy for so long."""
    for _ in range(workers):
        stage.work("--processes", "2", **env)
    stage.produce(*QUEUES, "--count", str(each), "--threads", "2", "--rate", str(each / 2 / seconds), "--atomic")
    stage.wait_for_runs(30)


@pytest.mark.timeout(600)
def test_a_server_that_crashes_and_restarts_under_load_loses_nothing(make_stage: MakeStage, report: Report) -> None:
    """10 crashes; 40 with FAULTS_SCALE=10. With fsync, as a real server runs."""
    stage = make_stage(postgres.DURABLE)
    crashes = max(10, scaled(4))
    load(stage, each=scaled(2000), seconds=crashes * 5)
    for _ in range(crashes):
        before = stage.ended()
        stage.fault("crash")
        stage.server.halt(mode="immediate")
        time.sleep(stage.chance.uniform(0.0, 1.5))
        stage.server.boot()
        stage.healed()
        wait_until(lambda: stage.ended() > before + 20 or stage.is_over(), 60)  # noqa: B023
        time.sleep(stage.chance.uniform(0.5, 2))
    report(stage.finish(FORGETFUL))


@pytest.mark.timeout(600)
def test_each_session_of_ours_may_be_ended_by_itself(stage: Stage, report: Report) -> None:
    """Each of the applications' sessions in turn: claim, settle, renew, listen, enqueue and whatever there is."""
    load(stage, each=scaled(400), seconds=20 * scaled(1), FAULTS_LEASE="3", FAULTS_PACE="10")  # so that it is renewed
    seen: dict[str, int] = {}
    for _ in range(scaled(2)):
        sessions = stage.ask_server(f"SELECT application_name, pid FROM pg_stat_activity WHERE {OURS} ORDER BY 1, 2")
        for application, pid in sessions:
            stage.fault(application)
            if stage.ask_server("SELECT pg_terminate_backend(%s)", [pid])[0][0]:
                kind = application.removeprefix("django_workqueue ")
                seen[kind] = seen.get(kind, 0) + 1
            time.sleep(0.15)
        time.sleep(1)
    assert {"claim", "settle", "listen", "enqueue", "renew"} <= set(seen)
    report(stage.finish(more={"ended": seen}))


@pytest.mark.timeout(300)
def test_a_server_out_of_connections_is_waited_for(make_stage: MakeStage, report: Report) -> None:
    stage = make_stage({"max_connections": "40", "superuser_reserved_connections": "0"})
    load(stage, each=scaled(1500), seconds=15)
    for _ in range(2):
        with contextlib.ExitStack() as greedy:
            stage.fault("out of connections")
            with stage.session() as session:
                session.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")
                until = time.monotonic() + 4
                while time.monotonic() < until:  # as fast as places become free, so that nobody else gets one
                    with contextlib.suppress(psycopg.OperationalError):
                        greedy.enter_context(psycopg.connect(stage.server.url))
                        continue
                    time.sleep(0.02)
        stage.healed()
        time.sleep(2)
    assert "too many clients" in stage.said()
    report(stage.finish())


@contextlib.contextmanager
def small_disk(path: Path, owner: Path) -> Iterator[Path]:
    """A file system of 96 MB; skips where none can be mounted."""
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(path)], check=False)
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        shutil.chown(path, owner.stat().st_uid, owner.stat().st_gid)
        path.chmod(0o700)
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.timeout(300)
def test_a_full_disk_under_the_log_loses_nothing_once_there_is_room(
    make_stage: MakeStage, report: Report, tmp_path: Path
) -> None:
    settings = postgres.DURABLE | {"min_wal_size": "32MB", "max_wal_size": "48MB", "full_page_writes": "on"}
    server = postgres.throwaway(settings=settings).start()
    wal = server.data / "pg_wal"
    with small_disk(server.home / "small", server.data) as disk:
        server.halt()
        subprocess.run(["cp", "-a", f"{wal}/.", str(disk)], check=True)
        shutil.rmtree(wal)
        wal.symlink_to(disk)
        server.boot()
        stage = make_stage(server=server)
        load(stage, each=scaled(1500), seconds=15)
        for _ in range(2):
            before = stage.ended()
            filler = disk / "filler"
            stage.fault("disk full")
            with contextlib.suppress(OSError), filler.open("wb") as file:
                while True:
                    file.write(b"\0" * 65536)
                    file.flush()
            # Until it needs a new segment it goes on; then it panics, and cannot recover for want of room either.
            with contextlib.suppress(psycopg.Error), stage.session() as session:
                for _ in range(64):
                    session.execute("CREATE TABLE IF NOT EXISTS filling (a text)")
                    session.execute(
                        "INSERT INTO filling SELECT repeat(md5(i::text), 30) FROM generate_series(1, 5000) i"
                    )
            wait_until(lambda: not server.is_running() or stage.left() == -1, 60)
            time.sleep(2)
            filler.unlink()
            if not server.is_running():
                with contextlib.suppress(postgres.ServerError):
                    server.boot()
            wait_until(lambda: stage.left() >= 0, 60)
            stage.healed()
            wait_until(lambda: stage.ended() > before + 20 or stage.is_over(), 60)  # noqa: B023
        report(stage.finish(FORGETFUL))
        server.close()


def standby_of(server: postgres.Server) -> postgres.Server:
    """A second server that follows the first."""
    standby = postgres.throwaway(settings=server.settings)
    if standby.account:
        os.chown(standby.home, standby.account.pw_uid, standby.account.pw_gid)
    into = ["-D", str(standby.data), "-X", "stream", "-R", "-c", "fast"]
    server._check("pg_basebackup", "-h", server.socket, "-U", "postgres", *into)
    (standby.data / ".s.PGSQL.5432.lock").unlink(missing_ok=True)
    return standby.start()


@pytest.mark.timeout(300)
def test_a_failover_to_the_standby_loses_nothing(make_stage: MakeStage, report: Report) -> None:
    """The old primary turns read-only under the open connections; then the address leads to the promoted standby."""
    server = postgres.throwaway().start()
    standby = standby_of(server)
    network = Network(server.socket)
    try:
        stage = make_stage(server=server, url=network.url)
        stage.ask_server("ALTER SYSTEM SET synchronous_standby_names = '*'")
        stage.ask_server("SELECT pg_reload_conf()")
        load(stage, each=scaled(1500), seconds=12)
        wait_until(lambda: stage.ask_server("SELECT sync_state FROM pg_stat_replication") == [("sync",)], 20)
        stage.fault("failover")
        stage.ask_server("ALTER SYSTEM SET default_transaction_read_only = on")
        stage.ask_server("SELECT pg_reload_conf()")
        time.sleep(2)  # the open sessions find themselves on a read-only server, and so do those that come anew
        with psycopg.connect(standby.url, autocommit=True) as session:
            network.target = standby.socket
            session.execute("SELECT pg_promote()")
            session.execute("ALTER SYSTEM RESET synchronous_standby_names")
            session.execute("SELECT pg_reload_conf()")
        stage.healed()
        old, stage.server = stage.server, standby
        figures = stage.finish(FORGETFUL)
        assert "read-only" in stage.said()
        stage.server = old
        report(figures)
    finally:
        network.close()
        standby.close()
