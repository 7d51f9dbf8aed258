"""Durable background work for Django on the PostgreSQL it already has: sets of keys, and lists of jobs."""

from .backoff import exponential
from .delivery import Job
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
from .jobs import JobQueue
from .keyed import Item
from .keys import KeyCodec
from .pubsub import Subscriber, publish
from .queues import Entry, Queue
from .stats import QueueStats
from .status import JobStatus
from .worker import Worker

__all__ = [
    "EmptyKey",
    "EnqueueTimeout",
    "Entry",
    "HandlerTimeout",
    "InvalidKey",
    "InvalidPayload",
    "Item",
    "Job",
    "JobQueue",
    "JobStatus",
    "KeyCodec",
    "KeyDecodeError",
    "KeyHasControlCharacter",
    "KeyTooLong",
    "PartialFailure",
    "PayloadTooLarge",
    "PermanentError",
    "Queue",
    "QueueClosed",
    "QueueStats",
    "Retry",
    "Subscriber",
    "UnsupportedDatabase",
    "Worker",
    "WorkqueueError",
    "exponential",
    "publish",
]
