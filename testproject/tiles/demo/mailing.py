"""The check's mails: one to each of the example addresses, and what became of them."""

import re
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from testproject.tiles.activity import What
from testproject.tiles.postman import BUSY, EXAMPLES, FAILURES, GONE, WORKS
from testproject.tiles.queues import letters

from .visitor import Visitor

RECIPIENT: Final = re.compile(r"^To: (.+)$", re.MULTILINE)
ENDS: Final = (What.SENT, What.DEAD)


@dataclass(frozen=True, slots=True)
class Mailed:
    """What became of the mails. `faults` is empty if it is what the addresses stand for."""

    arrived: list[str]
    failed: int
    dead: int
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{len(self.arrived)} mails sent, after {self.failed} failed attempts, and {self.dead} dead letter"
            f"{'' if self.dead == 1 else 's'}"
        )


class Mailing:
    """Sends the mails through the form when it is made, and follows what the activity page is fed."""

    def __init__(self, visitor: Visitor, folder: Path) -> None:
        self._visitor = visitor
        self._folder = folder
        self._happenings = visitor.happenings()
        next(self._happenings, None)  # from here on, nothing is missed
        visitor.open_page()
        for example in EXAMPLES:
            visitor.send_mail(example.address)

    def outcome(self) -> Mailed:
        """Wait until each has one, or for as long as the visitor has time."""
        seen = self._followed()
        dead = self._dead_letters(seen[What.DEAD])
        arrived = sorted(to for file in self._folder.glob("*") for to in RECIPIENT.findall(file.read_text()))
        return Mailed(arrived, seen[What.FAILED], dead, _faults(arrived, seen, dead))

    def _followed(self) -> Counter[str]:
        seen: Counter[str] = Counter()
        with closing(self._happenings):
            for name in self._happenings:
                seen[name] += 1
                if sum(seen[end] for end in ENDS) == len(EXAMPLES) or time.monotonic() > self._visitor.deadline:
                    break
        return seen

    def _dead_letters(self, told: int) -> int:
        """How many the queue has; it hears of one a little after the page does."""
        while (dead := letters.stats().stalled) < told and time.monotonic() < self._visitor.deadline:
            time.sleep(0.02)
        return dead


def _faults(arrived: list[str], seen: Counter[str], dead: int) -> list[str]:
    expected = sorted([WORKS.address, BUSY.address])
    faults = []
    if arrived != expected:
        faults.append(f"mails arrived for {', '.join(arrived) or 'nobody'} instead of {', '.join(expected)}")
    if seen[What.FAILED] != FAILURES:
        faults.append(f"{seen[What.FAILED]} attempts are said to have failed instead of {FAILURES}")
    if dead != 1:
        faults.append(f"there are {dead} dead letters instead of the one to {GONE.address}")
    return faults
