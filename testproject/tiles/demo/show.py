"""The whole show: everything started, the opening screenful looked at, and what came of it."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from django.core.management import call_command
from django.db import OperationalError
from django.urls import reverse

from django_workqueue import QueueStats
from testproject.tiles import login
from testproject.tiles.grid import Screen, TileKey
from testproject.tiles.layers import LAYERS
from testproject.tiles.models import Tile
from testproject.tiles.queues import tiles

from .database import scratch
from .errors import DemoError
from .mailing import Mailed, Mailing
from .visitor import Visitor, flaw
from .webserver import WebServer
from .workers import Workers

PROCESSES: Final = 2
TIME_LIMIT: Final = 60.0  # seconds, for the check as a whole and for the opening screenful
SETTLING: Final = 3.0  # seconds, for the queue to hear of what is finished


@dataclass(frozen=True, slots=True)
class Screenful:
    """What came of a screenful. `faults` is empty if every tile is there, sound, and no tile rendered twice."""

    tiles: int
    seconds: float
    rendered: int
    processes: int
    queue: QueueStats
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.tiles} tiles in {self.seconds:.1f} s, {self.rendered} of them rendered by "
            f"{self.processes} processes; queue: {_words(self.queue)}"
        )


class Checked:
    """What came of the check. `faults` is empty if all is as it should be."""

    def __init__(self, screenful: Screenful, mailed: Mailed) -> None:
        self.screenful = screenful
        self.mailed = mailed
        self.faults = [*screenful.faults, *mailed.faults]

    def __str__(self) -> str:
        return f"{self.screenful}; {self.mailed}"


class Show:
    """A web server and a worker that run together."""

    def __init__(self, server: WebServer, workers: Workers) -> None:
        self.server = server
        self.workers = workers

    def url(self, page: str) -> str:
        """Where a page of ours is."""
        return self.server.url.rstrip("/") + reverse(f"tiles:{page}")

    def login_url(self) -> str:
        """A new link into the admin that works once."""
        return self.server.url.rstrip("/") + reverse("tiles:login", args=[login.issue()])

    def serve(self) -> None:
        """Go on until interrupted. Raises if the worker ends by itself."""
        self.workers.wait()
        self._check_worker()

    def open(self, *, deadline: float, times: int = 0) -> Screenful:
        """Look at the opening screenful as a visitor does, having asked for each of its tiles `times` times at once."""
        screen = Screen.opening(next(iter(LAYERS))).tiles()
        before = Tile.objects.renders()
        started = time.monotonic()
        visitor = Visitor(self.server.url, deadline=deadline)
        visitor.open_page()
        if times:
            visitor.ask_often(screen, times=times)
        pictures = visitor.fetch(screen, alive=self._check_worker)
        seconds = time.monotonic() - started
        queue = _settled(min(deadline, time.monotonic() + SETTLING))
        return Screenful(
            tiles=len(pictures),
            seconds=seconds,
            rendered=Tile.objects.renders() - before,
            processes=self.workers.processes,
            queue=queue,
            faults=_faults(screen, pictures),
        )

    def _check_worker(self) -> None:
        status = self.workers.ended()
        if status is not None:
            raise DemoError(f"The worker has ended with exit status {status}; what it said is above.")


@contextmanager
def running(*, port: int, processes: int = PROCESSES) -> Iterator[Show]:
    """The demo on the project's own database, with its migrations applied."""
    server = WebServer(port)  # first: whoever cannot have the port need not wait for anything else
    try:
        call_command("migrate", verbosity=0, interactive=False)
    except OperationalError as error:
        raise DemoError(f"The database cannot be used: {error}") from error
    with server, Workers(processes=processes) as workers:
        yield Show(server, workers)


def check(*, processes: int = PROCESSES, within: float = TIME_LIMIT) -> Checked:
    """Everything once, with each tile asked for twice at once, on a database of its own that is dropped at the end."""
    deadline = time.monotonic() + within
    with (
        tempfile.TemporaryFile() as said,
        tempfile.TemporaryDirectory(prefix="demo-mail-") as folder,
        scratch() as environment,
    ):
        there = {**environment, "DEMO_MAIL_FOLDER": folder}
        with WebServer(0) as server, Workers(processes=processes, environment=there, output=said) as workers:
            try:
                mailing = Mailing(Visitor(server.url, deadline=deadline), Path(folder))
                screenful = Show(server, workers).open(deadline=deadline, times=2)
                result = Checked(screenful, mailing.outcome())
            except DemoError as error:
                said.seek(0)
                raise DemoError(f"{said.read().decode(errors='replace')}\n{error}".strip()) from error
        queue, faults = screenful.queue, result.faults
        if queue.ready or queue.leased or queue.stalled:
            faults.append(f"the queue is not empty: {_words(queue)}")
        if faults:
            said.seek(0)
            faults.append(f"the worker said: {said.read().decode(errors='replace').strip() or 'nothing'}")
        return result


def _settled(deadline: float) -> QueueStats:
    """The queue's figures once nothing of it is left to do; completions are written a little after the tiles."""
    while ((now := tiles.stats()).ready or now.leased) and time.monotonic() < deadline:
        time.sleep(0.02)
    return now


def _faults(screen: list[TileKey], pictures: dict[TileKey, bytes]) -> list[str]:
    missing = [f"{tile} is missing" for tile in screen if tile not in pictures]
    unsound = [f"{tile} is {what}" for tile, png in pictures.items() if (what := flaw(png))]
    again = [f"{tile} was rendered {times} times" for tile, times in Tile.objects.rendered_again(screen).items()]
    return missing + unsound + again


def _words(queue: QueueStats) -> str:
    names = ("ready", "leased", "scheduled", "stalled", "completed")
    return ", ".join(f"{name} {getattr(queue, name)}" for name in names)
