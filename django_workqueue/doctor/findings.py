"""What a finding is, and from where on something is one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any

from django.utils.translation import gettext as _


class Severity(IntEnum):
    """How bad it is."""

    NOTE = 1  # good to know
    WARNING = 2  # it costs something, or will
    SERIOUS = 3  # work is not done, or the database gets slower by the minute

    @property
    def label(self) -> str:
        """The same in words."""
        words = {Severity.NOTE: _("note"), Severity.WARNING: _("warning"), Severity.SERIOUS: _("serious")}
        return words[self]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be. `code` says what kind; `detail` what was seen, `advice` what to do."""

    code: str
    severity: Severity
    title: str
    detail: str
    advice: str
    database: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"severity": self.severity.name.lower()}


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on something is a finding."""

    transaction: timedelta = timedelta(minutes=5)  # open for so long, it is a warning …
    idle: timedelta = timedelta(minutes=1)  # … and if it does nothing meanwhile, for so long
    serious: timedelta = timedelta(hours=1)  # … and serious after this
    held_transactions: int = 1_000_000  # that a replication slot or a standby lags behind
    dead_rows: int = 100_000  # of a table, if they are also more than …
    dead_share: float = 0.5  # … so many for each live one
    index_bytes: int = 64 * 1024 * 1024  # of an index, if it also has more than …
    bytes_per_entry: int = 1000  # … so many for each entry
    inbox: int = 10_000  # rows
    pile: int = 100  # stalled items or dead jobs
    unworked: timedelta = timedelta(minutes=1)  # that something may be ready while no worker is seen
    silent: timedelta = timedelta(minutes=1)  # since a worker was last seen
    clock: timedelta = timedelta(seconds=5)  # between the server's clock and this machine's
