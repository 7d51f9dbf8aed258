"""A contestant that is installed, on the server: databases filled and cloned, verbs and workers run.

Owns the templates (one filled database per contestant, setup and size, cloned for every run).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import installs
from benchmarks.contestants.catalog import Contestant, Setup
from benchmarks.processes import Command, Workers
from benchmarks.server import Server

NODE_DRIVER = Path(__file__).parent / "contestants" / "node" / "driver.mjs"
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")


class Arena:
    """One installed contestant and the server it is measured on."""

    def __init__(self, contestant: Contestant, server: Server) -> None:
        self.contestant = contestant
        self.server = server
        self.environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.version = ""
        self.words = self.install()

    def install(self) -> list[str]:
        """Make the contestant's environment; the words of its command up to the verb."""
        contestant = self.contestant
        if contestant.language == "node":
            words, modules, self.version = installs.node(contestant.adapter, contestant.install[0])
            self.environment["BENCH_MODULES"] = str(modules)
            return [*words, str(NODE_DRIVER), contestant.adapter]
        if contestant.language == "python":
            words, self.version = installs.python(contestant.adapter, contestant.install)
        else:
            words, self.version = [sys.executable], importlib.metadata.version(contestant.install[0])
            self.environment["DJANGO_SETTINGS_MODULE"] = "benchmarks.project.settings"
        return [*words, "-m", "benchmarks.contestants.driver", contestant.adapter]

    def database(self, setup: Setup, *, jobs: int = 0) -> str:
        """A fresh database with the contestant's tables and so many jobs waiting."""
        return self.copy(self.filled(setup, jobs))

    def filled(self, setup: Setup, jobs: int) -> str:
        """The database with so many jobs waiting that is cloned for every run, enqueued at first need."""

        def fill(database: str) -> None:
            if jobs:
                self.call("fill", setup, database, count=jobs)

        return self.made(f"{jobs}_jobs", setup, fill)

    def made(self, what: str, setup: Setup, fill: Callable[[str], None]) -> str:
        """The database of that name with the contestant's tables, filled and vacuumed at first need."""
        name = f"{self.contestant.adapter}_{self.contestant.setups.index(setup)}_{what}"
        if not self.server.exists(name):
            building = f"{name}_building"
            self.server.create(building)
            self.call("prepare", setup, building)
            fill(building)
            self.server.settle(building)
            self.server.command("ALTER DATABASE {} RENAME TO {}", building, name)
        return name

    def copy(self, template: str) -> str:
        """A copy to measure on; the last one is gone then."""
        self.server.create(self.running, template=template)
        return self.running

    def discard(self) -> None:
        """Drop the copy, before the next checkpoint writes it out for nothing."""
        self.server.drop(self.running)

    @property
    def running(self) -> str:
        """The database that is measured on."""
        return f"{self.contestant.adapter}_run"

    def call(self, verb: str, setup: Setup, database: str, **options: Any) -> dict[str, Any]:
        """Run one verb of the contestant to its end."""
        command = Command(self.words, self.environment)
        return command.call(verb, options, self.given(setup.settings, database))

    def workers(self, setup: Setup, database: str, *, size: int, processes: int = 1) -> Workers:
        """Worker processes, to be entered; two of them are one command where the contestant has its own way."""
        together = processes > 1 and setup.several is not None
        settings = {**setup.settings, **(setup.several or {})} if together else setup.settings
        command = Command([*self.words, "work", "{}"], self.environment)
        commands = [command] * (1 if together else processes)
        return Workers(commands, size=size, extra=self.given(settings, database), gated=True)

    def pending(self, database: str) -> int:
        """How many jobs the contestant's tables say are not finished."""
        return int(self.ask(database, f"SELECT count(*) FROM {self.contestant.pending}"))

    def ask(self, database: str, question: str) -> Any:
        """The one value that a query answers."""
        with self.server.connect(database) as connection:
            row = connection.execute(question).fetchone()
        assert row is not None
        return row[0]

    def given(self, settings: Mapping[str, Any], database: str) -> dict[str, str]:
        """The environment by which a process learns where and how."""
        return {"BENCH_DSN": self.server.dsn(database), "BENCH_SETTINGS": json.dumps(settings)}
