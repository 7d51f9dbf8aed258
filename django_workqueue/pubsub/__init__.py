"""Pub/sub on PostgreSQL's notifications.

Nothing is stored: a message reaches whoever listens when it is committed.
"""

from .publishing import Message, apublish, publish
from .subscribing import Messages, Subscriber

__all__ = ["Message", "Messages", "Subscriber", "apublish", "publish"]
