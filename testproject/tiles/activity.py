"""What happens, told to whoever looks: events on a channel of pub/sub.

Nothing is stored here; what has happened before is `history`'s to find.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Self

from django.utils import timezone

from django_workqueue import Job, PermanentError, publish
from django_workqueue.pubsub import Message

CHANNEL: Final = "activity"
LONGEST: Final = 300  # characters of an error: a notification has room for 7,999 bytes


class What(StrEnum):
    """The kinds of event."""

    ENQUEUED = "enqueued"
    STARTED = "started"
    FAILED = "failed"
    SENT = "sent"
    DEAD = "dead"
    RENDERED = "rendered"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to `whom`: an address, or a tile."""

    what: What
    whom: str
    job: int | None = None
    attempt: int = 0
    error: str = ""
    at: datetime = field(default_factory=timezone.now)

    @property
    def key(self) -> str:
        """The same for an event that was told and the same event as it is found in the tables."""
        return f"{self.job}-{self.attempt}-{self.what}"

    @classmethod
    def told(cls, message: Message) -> Self | None:
        """The event that `tell` made the message of; None if it is a stranger's, as anybody may publish."""
        try:
            told: dict[str, Any] = message.json()
            return cls(**told | {"what": What(told["what"]), "at": datetime.fromisoformat(told["at"])})
        except (ValueError, TypeError, KeyError):
            return None


def tell(event: Event) -> None:
    """Tell whoever listens; inside a transaction, when it commits."""
    publish(CHANNEL, asdict(event))


@contextmanager
def reported(job: Job) -> Iterator[None]:
    """Tell how an attempt at a letter goes."""

    def happened(what: What, error: str = "") -> None:
        tell(Event(what, str(job.payload["to"]), job.id, job.attempts, error))

    happened(What.STARTED)
    try:
        yield
    except Exception as error:
        last = isinstance(error, PermanentError) or job.attempts >= job.max_attempts
        happened(What.DEAD if last else What.FAILED, described(type(error).__name__, str(error)))
        raise
    happened(What.SENT)


def described(kind: str, message: str) -> str:
    """An error in one line."""
    return f"{kind.rpartition('.')[2]}: {message}"[:LONGEST]
