"""Sends the welcome mail; for two of the example addresses, acts as a mail server that will not take it.

Where mails go is Django's settings' business.
"""

from dataclasses import dataclass
from smtplib import SMTPRecipientsRefused, SMTPServerDisconnected
from typing import Final

from django.core.mail import EmailMessage

from django_workqueue import PermanentError

SENDER: Final = "map@example.com"
FAILURES: Final = 2  # before the busy one takes the mail


@dataclass(frozen=True, slots=True)
class Example:
    """An address to try, and what comes of it."""

    address: str
    outcome: str


WORKS: Final = Example("ada@example.com", "arrives")
BUSY: Final = Example("busy@example.com", "fails twice, then arrives")
GONE: Final = Example("gone@example.com", "is refused for good: a dead letter")
EXAMPLES: Final = (WORKS, BUSY, GONE)


def welcome(address: str, *, attempt: int) -> None:
    """Send the mail. Raises `PermanentError` if it is of no use to try again, and what went wrong if it is."""
    try:
        _connect(address, attempt)
    except SMTPRecipientsRefused as error:
        raise PermanentError(f"There is nobody of the address {address}") from error
    EmailMessage(
        "Welcome",
        "Good to have you. This mail was sent by a job, and the map was rendered by items of a queue.",
        SENDER,
        [address],
    ).send()


def _connect(address: str, attempt: int) -> None:
    """What a real mail server answers sooner or later."""
    if address == BUSY.address and attempt <= FAILURES:
        raise SMTPServerDisconnected(f"The server hung up on attempt {attempt}")
    if address == GONE.address:
        raise SMTPRecipientsRefused({address: (550, b"5.1.1 No such user")})
