"""Waking whoever waits for work: one LISTEN connection per process and alias, and the NOTIFYs that it hears.

Owns the connection, which pub/sub shares. What a queue holds, and how rows are committed, is others' business.
"""

from .listener import ListenerState, Receiver, Status
from .mailbox import Mailbox
from .switchboard import close, listener_state, probe, switchboard
from .waker import Waker, announce
from .wakeup import CHANNEL, Wakeup, occasional, reachable, subscribe, wake_local

__all__ = [
    "CHANNEL",
    "ListenerState",
    "Mailbox",
    "Receiver",
    "Status",
    "Waker",
    "Wakeup",
    "announce",
    "close",
    "listener_state",
    "occasional",
    "probe",
    "reachable",
    "subscribe",
    "switchboard",
    "wake_local",
]
