"""Marking the start of work on its last attempt, just before it starts: group-committed across the slots.

An attempt counts when the handler starts; a process that dies with much in hand must not use up the last
attempts of what it never began.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from django_workqueue.database import Connection

from .bell import Bell
from .lane import Batch, Lane
from .outage import Outage, Patience

QUICK = 0.001  # seconds: handlers that run shorter will all ask soon …
GATHER = 0.0002  # … so wait for them, as one statement for eight costs hardly more than one for two

Answer = Callable[[bool], None]


class Starter:
    """Asks the database, for the slots of one process, whether work may start. Its threads start when first asked."""

    def __init__(self, outages: dict[str, Outage]) -> None:
        self._outages = outages
        self._desks: dict[str, _Desk] = {}
        self._closed = False
        self._lock = threading.Lock()  # guards both, so that nobody asks a desk that is closed

    def start(self, lane: Lane, batch: Batch, work: Any) -> bool:
        """Whether `work` may start; waits for the answer."""
        mail: SimpleQueue[bool] = SimpleQueue()
        self.ask(lane, batch, work, mail.put)
        return mail.get()

    def ask(self, lane: Lane, batch: Batch, work: Any, answer: Answer) -> None:
        """Have `answer` called with whether `work` may start: from another thread, or at once with no, once closed."""
        alias = lane.source.alias
        with self._lock:
            if not self._closed:
                desk = self._desks.get(alias)
                if desk is None:
                    desk = self._desks[alias] = _Desk(alias, self._outages[alias])
                desk.ask(lane, batch, work, answer)
                return
        answer(False)  # noqa: FBT003 - whether it may

    def close(self) -> None:
        """Answer whoever waits, or asks from now on, with no, and end the threads."""
        with self._lock:
            self._closed = True
            for desk in self._desks.values():
                desk.close()


class _Desk:
    """The thread and connection for one alias."""

    def __init__(self, alias: str, outage: Outage) -> None:
        self._asked: deque[tuple[Lane, Batch, Any, Answer]] = deque()
        self._bell = Bell()
        self._closing = False
        self._connection = Connection(alias, application="django_workqueue start")
        self._patience = Patience("start", outage)
        self._thread = threading.Thread(target=self._run, name=f"workqueue-start-{alias}", daemon=True)
        self._thread.start()

    def ask(self, lane: Lane, batch: Batch, work: Any, answer: Answer) -> None:
        self._asked.append((lane, batch, work, answer))
        self._bell.ring()

    def close(self) -> None:
        self._closing = True
        self._bell.ring()

    def _run(self) -> None:
        while not (self._closing and not self._asked):
            asked = [self._asked.popleft() for _ in range(len(self._asked))]
            if not asked:
                self._bell.wait()
                continue
            if len(asked) < asked[0][0].slots and (asked[0][0].run_time or 1.0) < QUICK:
                time.sleep(GATHER)
                asked += [self._asked.popleft() for _ in range(len(self._asked))]
            for lane in {lane.number: lane for lane, _, _, _ in asked}.values():
                mine = [(work, answer) for asked_lane, _, work, answer in asked if asked_lane is lane]
                started = self._start(lane, [work for work, _ in mine])
                for ident, (_, answer) in zip(lane.source.idents([work for work, _ in mine]), mine, strict=True):
                    answer(ident in started)
        self._connection.close()

    def _start(self, lane: Lane, works: list[Any]) -> set[Any]:
        if self._closing:
            return set()
        try:
            may = set(lane.source.idents(lane.source.start_on(self._connection, works)))
        except Exception as error:  # noqa: BLE001 - a thread's outer edge; what may not start is given back
            pause, remake = self._patience.failed(error)
            if remake:
                self._connection.close()
            threading.Event().wait(min(pause, 1.0))
            return set()
        self._patience.succeeded()
        return may
