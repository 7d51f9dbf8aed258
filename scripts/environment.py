"""Makes the virtual environment of one dependency group, and runs a command in it.

Finds no interpreter: the environment is of the Python that runs this (see `find-python`).
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


class Environment:
    """The folder `.venv-GROUP`, which holds this project in editable form and what the group asks for."""

    def __init__(self, group: str, *, django: str | None) -> None:
        self.group = group
        self.django = django
        self.folder = PROJECT / (f".venv-{group}-django{django}" if django else f".venv-{group}")
        self.log = self.folder.with_suffix(self.folder.suffix + ".log")

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    def make(self) -> None:
        """Make it, unless it is there and still what pyproject.toml asks for."""
        with self.folder.with_suffix(self.folder.suffix + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            mark = self.folder / "made-for"
            if mark.exists() and mark.read_text() == self.wanted():
                return
            print(f"Making {self.folder.name} with Python {sys.version.split()[0]} (a minute, once) ...", flush=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            venv.create(self.folder, with_pip=True)
            self.install("pip>=25.1")  # the first that knows dependency groups
            django = [f"Django~={self.django}.0"] if self.django else []
            self.install("--editable", ".", "--group", self.group, *django)
            mark.write_text(self.wanted())

    def wanted(self) -> str:
        asked = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
        project, groups = asked["project"], asked["dependency-groups"]
        packages = [project["dependencies"], project["optional-dependencies"], groups]
        return f"{sys.version} {sys.prefix} {hashlib.sha256(json.dumps(packages).encode()).hexdigest()}\n"

    def install(self, *what: str) -> None:
        pip = [self.programs / "python", "-m", "pip", "--disable-pip-version-check", "--retries", "2"]
        with self.log.open("w") as log:
            done = subprocess.run([*pip, "install", *what], cwd=PROJECT, stdout=log, stderr=subprocess.STDOUT)
        if done.returncode:
            raise SystemExit(self.what_went_wrong())

    def what_went_wrong(self) -> str:
        told = self.log.read_text()
        if "Retrying (" in told:
            return (
                f"The package index cannot be reached, and {self.folder.name} is not complete without it: "
                f"connect to the network (or point pip at an index of yours) and try again. Details: {self.log.name}"
            )
        errors = [line for line in told.splitlines() if "error" in line.lower()] or ["no reason"]
        return f"pip could not install what {self.folder.name} needs: {errors[-1]} (all it says: {self.log.name})"

    def run(self, command: list[str]) -> None:
        """Become the command."""
        os.environ["VIRTUAL_ENV"] = str(self.folder)
        os.environ["PATH"] = f"{self.programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        os.execvp(command[0], command)


if __name__ == "__main__":
    environment = Environment(sys.argv[1], django=os.environ.get("DJANGO"))
    try:
        environment.make()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    environment.run(sys.argv[2:])
