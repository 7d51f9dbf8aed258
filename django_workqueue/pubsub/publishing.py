"""What is published, and how it travels: a notification in the caller's own transaction.

Who hears it is `subscribing`'s business.
"""

from __future__ import annotations

import base64
import builtins
import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections

from django_workqueue import database, payloads
from django_workqueue.exceptions import InvalidPayload, PayloadTooLarge

MAX_PAYLOAD = 7_999  # bytes: the server's limit
MAX_CHANNEL = 63  # bytes: likewise

PUBLISH = "SELECT pg_notify(%s, %s)"

JSON = str | int | float | bool | None | Mapping[str, Any] | Sequence[Any]


def publish(channel: str, payload: bytes | JSON = "", *, using: str | None = None) -> None:
    """Send a message to everybody who listens on the channel, if and when the caller's transaction commits.

    Outside a transaction it is sent at once. A `str` is sent as it is, `bytes` as base64, anything else as
    JSON text: what another program sees is what `LISTEN` shows it. A channel is any text of 1 to 63 bytes; on
    `workqueue` the name of a queue wakes its workers.

    Raises `PayloadTooLarge` over 7,999 bytes (as sent, in UTF-8), `InvalidPayload` for what is not JSON or
    holds NUL or a lone surrogate, and `ValueError` for such a channel.
    """
    check_channel(channel)
    text = _encode(payload)
    connection = connections[database.resolve(using)]
    database.require_postgresql(connection)
    try:
        with connection.cursor() as cursor:
            cursor.execute(PUBLISH, [str.__str__(channel), text])
    except SynchronousOnlyOperation as error:
        database.name_twins(error)
        raise


async def apublish(channel: str, payload: bytes | JSON = "", *, using: str | None = None) -> None:
    """`publish` for coroutines. Under `async_to_sync` it rides the transaction of the sync code behind it."""
    await sync_to_async(publish)(channel, payload, using=using)


class Message(str):
    """What was published, as its text, with the channel it came on."""

    __slots__ = ("channel",)

    channel: str

    def __new__(cls, channel: str, payload: str) -> Self:
        message = super().__new__(cls, payload)
        message.channel = channel
        return message

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return type(self), (self.channel, self.payload)

    def __repr__(self) -> str:
        return f"Message(channel={self.channel!r}, payload={self.payload!r})"

    @property
    def payload(self) -> str:
        """The text, as a plain `str`."""
        return str.__str__(self)

    def json(self) -> Any:
        """The value that was published as JSON; `ValueError` if the text is not JSON."""
        return json.loads(self.payload)

    def bytes(self) -> builtins.bytes:
        """The bytes that were published; `ValueError` if the text is not base64."""
        return base64.b64decode(self.payload, validate=True)


def check_channel(channel: object) -> None:
    """Refuse what cannot be a channel's name."""
    if not isinstance(channel, str):
        raise TypeError(f"a channel is a str, not {channel!r}")
    try:
        size = len(channel.encode())
    except UnicodeEncodeError:
        raise ValueError(f"the channel {channel!r} holds a lone surrogate, which no text encoding has") from None
    if not 1 <= size <= MAX_CHANNEL:
        raise ValueError(f"a channel is a text of 1 to {MAX_CHANNEL} bytes; {channel!r} has {size}")
    if "\0" in channel:
        raise ValueError(f"the channel {channel!r} holds a NUL character, which PostgreSQL cannot store")


def _encode(payload: object) -> str:
    """The text to send for a payload."""
    if isinstance(payload, str):
        text = str.__str__(payload)
    elif isinstance(payload, (bytes, bytearray, memoryview)):
        text = base64.b64encode(payload).decode()
    else:
        text = _as_json(payload)
    if "\0" in text:
        raise InvalidPayload(f"the payload holds a NUL character at {text.index(chr(0))}: publish it as bytes or JSON")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidPayload(
            f"the payload holds a lone surrogate at {error.start}, which no text encoding has"
        ) from None
    if size > MAX_PAYLOAD:
        raise PayloadTooLarge(
            f"the payload takes {size:,} bytes and a notification at most {MAX_PAYLOAD:,}: "
            "publish a reference, and let subscribers read the rest from a table"
        )
    return text


def _as_json(payload: object) -> str:
    try:
        return json.dumps(payload, cls=DjangoJSONEncoder, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        payloads.dumps(payload)  # says it better, with the path to what is wrong
        raise InvalidPayload(f"the payload is neither text, bytes nor JSON: {error}") from error
