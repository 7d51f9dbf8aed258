"""The history: what producers and handlers saw happen, in files beside the queue's own tables.

Each process appends to a file of its own, one `write` a line, so that a line is there whole or not at all however the
process ends. Times are the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = "FAULTS_HISTORY"


class Pen:
    """Appends to this process's own file; also after a fork."""

    def __init__(self) -> None:
        self._pid = 0
        self._file = -1

    def note(self, what: str, **more: Any) -> None:
        pid = os.getpid()
        if pid != self._pid:
            path = Path(os.environ[FOLDER]) / f"{pid}.jsonl"
            self._file, self._pid = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), pid
        line = {"what": what, "at": time.monotonic(), "pid": pid, **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")


pen = Pen()


def rest(seconds: float) -> None:
    """Sleep. (Under libfaketime, `time.sleep` fails now and then with an OSError of no meaning.)"""
    threading.Event().wait(seconds)


@dataclass
class Run:
    """One run of a handler. `ended` is None where it never came to its end."""

    queue: str
    name: str
    attempt: int
    pid: int
    started: float
    ended: float | None = None
    outcome: str | None = None
    job: int | None = None


@dataclass
class Ask:
    """One enqueue of one name. `acked` is None where it was not acknowledged: it may be there, or not."""

    queue: str
    name: str
    began: float
    acked: float | None = None
    job: int | None = None
    priority: int = 0


@dataclass
class History:
    asks: list[Ask] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def read(folder: Path) -> History:
    """All that was noted."""
    history = History()
    for path in sorted(folder.glob("*.jsonl")):
        running: dict[int, Run] = {}
        for line in _lines(path):
            what = line.pop("what")
            if what == "start":
                run = Run(line["queue"], line["name"], line["attempt"], line["pid"], line["at"], job=line.get("job"))
                running[line["run"]] = run
                history.runs.append(run)
            elif what == "end":
                run = running.pop(line["run"])
                run.ended, run.outcome = line["at"], line["outcome"]
            elif what == "ask":
                jobs = line.get("jobs") or [None] * len(line["names"])
                history.asks += [
                    Ask(line["queue"], name, line["began"], line["acked"], job, line.get("priority", 0))
                    for name, job in zip(line["names"], jobs, strict=True)
                ]
                if line["acked"] is None:
                    history.refusals.append(line["error"])
    return history


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """What a process noted, but for a last line in the middle of which it was killed."""
    *whole, _torn = path.read_text().split("\n")
    return map(json.loads, whole)
