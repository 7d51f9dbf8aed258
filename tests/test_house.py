"""The house itself: the servers and fixtures that the other tests stand on."""

import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections

from testproject import postgres
from tests import interleave

PROJECT = Path(__file__).resolve().parent.parent


@pytest.mark.django_db
def test_the_server_is_one_that_we_support():
    assert connection.pg_version >= 140000


@pytest.mark.django_db(databases=["default", "other"])
def test_the_second_alias_is_another_database_on_the_same_server():
    names = set()
    for alias in ("default", "other"):
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT current_database()")
            names.add(cursor.fetchone()[0])
    assert len(names) == 2


@pytest.mark.django_db
def test_the_migrations_are_what_the_models_say():
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


@pytest.mark.django_db(transaction=True)
def test_a_second_connection_is_seen_to_wait_for_the_first(connect, wait_until, aside):
    holder, waiter, observer = connect(), connect(), connect()
    holder.execute("SELECT pg_advisory_lock(1)")
    done = aside(waiter.execute, "SELECT pg_advisory_lock(1)")
    wait_until(lambda: interleave.waits_for_lock(observer, waiter.info.backend_pid))
    assert interleave.blocked_pids(observer) == [waiter.info.backend_pid]
    holder.execute("SELECT pg_advisory_unlock(1)")
    done.result(timeout=10)


def test_a_command_in_another_process_uses_the_test_database(manage):
    process = manage("shell", "-c", "from django.db import connection; print(connection.settings_dict['NAME'])")
    output, _ = process.communicate(timeout=30)
    assert output.splitlines()[-1] == connection.settings_dict["NAME"]


def test_a_throwaway_server_starts_survives_a_crash_and_leaves_nothing():
    server = postgres.throwaway().start()
    with psycopg.connect(server.url) as session:
        session.execute("CREATE TABLE kept AS SELECT 1 AS one")
    server.halt(mode="immediate")
    server.boot()
    with psycopg.connect(server.url) as session:
        assert session.execute("SELECT one FROM kept").fetchone() == (1,)
    server.close()
    assert not server.home.exists()


def test_a_server_ends_with_the_last_of_those_who_joined_it(wait_until):
    starter = postgres.Server(postgres.throwaway().home, settings=postgres.QUICK).start()
    joiner = postgres.Server(starter.home, settings=postgres.QUICK).start()
    starter.close()
    with psycopg.connect(joiner.url) as session:
        assert session.execute("SELECT 1").fetchone() == (1,)
    joiner.close()
    wait_until(lambda: not joiner.is_running())
    shutil.rmtree(joiner.home)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder for the PATH that has what a shell script needs, and no Python."""
    for tool in ("sh", "dirname", "tr", "grep", "sed", "ls"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    return tmp_path


def find_python(path: Path, *arguments: str, python: str = "") -> subprocess.CompletedProcess[str]:
    script = PROJECT / "scripts" / "find-python"
    environment = {"PATH": str(path), "PYTHON": python}
    return subprocess.run([script, *arguments], env=environment, capture_output=True, text=True, check=False)


def pretend(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_no_python_at_all_is_told_in_a_sentence(path):
    for arguments in ([], ["newest"]):
        refused = find_python(path, *arguments)
        assert refused.returncode == 1
        assert refused.stderr == "There is no Python here by the name of python3: install Python 3.11 or newer.\n"


def test_a_python_that_is_too_old_is_told_in_a_sentence(path):
    pretend(path / "python3", "echo 'is Python 3.9.2; Python 3.11 or newer is needed'")
    refused = find_python(path)
    assert refused.returncode == 1
    assert refused.stderr == f"{path}/python3 is Python 3.9.2; Python 3.11 or newer is needed.\n"


def test_the_newest_python_that_really_runs_is_chosen(path):
    pretend(path / "python3.14", "exit 127")  # a shim of a version that is not active
    pretend(path / "python3.13", "exit 0")
    pretend(path / "python3.11", "exit 0")
    assert find_python(path, "newest").stdout == f"{path}/python3.13\n"
    assert find_python(path, "3.11").stdout == f"{path}/python3.11\n"
    assert find_python(path, "3.14").returncode == 1


def test_a_python_among_pyenv_versions_is_found_behind_a_shim_that_refuses(path):
    shims, versions = path / "pyenv" / "shims", path / "pyenv" / "versions" / "3.13.0" / "bin"
    shims.mkdir(parents=True)
    versions.mkdir(parents=True)
    pretend(shims / "python3.13", "exit 127")
    pretend(versions / "python3.13", "exit 0")
    assert find_python(Path(f"{path}:{shims}"), "newest").stdout == f"{versions}/python3.13\n"
