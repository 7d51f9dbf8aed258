"""Durable background work for Django on the PostgreSQL it already has: sets of keys, and lists of jobs."""

from .backoff import exponential
from .exceptions import (
    EmptyKey,
    EnqueueTimeout,
    HandlerTimeout,
    InvalidKey,
    InvalidPayload,
    KeyDecodeError,
    KeyHasControlCharacter,
    KeyTooLong,
    PartialFailure,
    PayloadTooLarge,
    PermanentError,
    QueueClosed,
    Retry,
    UnsupportedDatabase,
    WorkqueueError,
)
from .keyed import Item
from .keys import KeyCodec
from .queues import Entry, Queue
from .stats import QueueStats
