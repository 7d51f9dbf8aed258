"""Statements sent through libpq's own calls: prepared once, and two of them in one message where one follows the other.

For what every group commit sends. A cursor adapts, prepares and converts for any statement there may be, which costs
such a small one more than its way to the server and back. Knows nothing of queues.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Mapping
from typing import Any

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.waiting import Ready, Wait

MOST = 1000  # statements that one connection keeps prepared

_PLACEHOLDER = re.compile(r"%(?:%|\((\w+)\)s)")
_KINDS = (str, int, bool, type(None))

Waiting = Generator[Wait, "Ready | int", None]  # what psycopg's connections wait for
Command = tuple[str, Mapping[str, Any]]  # a statement with psycopg's named placeholders, and their values


class Wire:
    """One connection in autocommit mode, used by one thread at a time. Errors are psycopg's.

    Where an exchange is broken off half-way, by the network or an interrupt, it closes the connection.
    """

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw
        self._pgconn = raw.pgconn
        self._encoding = raw.info.encoding
        self._prepared: dict[str, _Prepared] = {}
        self._sent: deque[_Prepared] = deque()  # and not answered

    def takes(self, text: str, params: Mapping[str, Any]) -> bool:
        """Whether a statement can be sent here: there is room for it, and its values are text, numbers or None."""
        return (text in self._prepared or len(self._prepared) < MOST) and all(
            type(value) in _KINDS and (type(value) is not str or "\0" not in value) for value in params.values()
        )

    def execute(self, command: Command, behind: Command | None = None) -> None:
        """Run a statement that returns nothing, in a transaction of its own; what goes along `behind` it has another.

        Returns when the first is answered. The answer to the other is left to `finish`, which is to be called before
        anything else is done on the connection.
        """
        self._exchange(command, *(() if behind is None else (behind,)))

    def finish(self) -> None:
        """Wait for an answer that was left, if one was; raises its error."""
        if self._sent:
            self._exchange()

    def _exchange(self, *commands: Command) -> None:
        """Send commands, and take the next answer."""
        try:
            if commands:
                self._pgconn.enter_pipeline_mode()
            for text, params in commands:
                self._send(text, params)
            answer = _Answer(self._sent[0])
            self._raw.wait(answer.arriving(self._pgconn))
            self._sent.popleft()
            if not self._sent:
                self._pgconn.exit_pipeline_mode()
        except BaseException:
            self._pgconn.finish()
            self._sent.clear()
            raise
        if answer.error is not None:
            raise error_from_result(answer.error, self._encoding)

    def _send(self, text: str, params: Mapping[str, Any]) -> None:
        prepared = self._prepared.get(text)
        if prepared is None:
            prepared = self._prepared[text] = _Prepared(text, len(self._prepared), self._encoding)
        if not prepared.is_there and prepared not in self._sent:
            self._pgconn.send_prepare(prepared.name, prepared.text)
        self._pgconn.send_query_prepared(prepared.name, prepared.values(params))
        self._pgconn.pipeline_sync()
        self._sent.append(prepared)


class _Prepared:
    """One statement as the server knows it."""

    def __init__(self, text: str, number: int, encoding: str) -> None:
        self.name = f"workqueue_{number}".encode()
        self.is_there = False  # it has been answered without an error
        self._encoding = encoding
        self._order: dict[str, int] = {}
        self.text = _PLACEHOLDER.sub(self._numbered, text).encode(encoding)

    def values(self, params: Mapping[str, Any]) -> list[bytes | None]:
        """The values in their order, as text."""
        return [self._as_text(params[name]) for name in self._order]

    def _numbered(self, placeholder: re.Match[str]) -> str:
        name = placeholder.group(1)
        return "%" if name is None else f"${self._order.setdefault(name, len(self._order) + 1)}"

    def _as_text(self, value: Any) -> bytes | None:
        return None if value is None else str(value).encode(self._encoding)


class _Answer:
    """What one command, and if need be its preparation, was answered: `error` is the first result that is one."""

    def __init__(self, prepared: _Prepared) -> None:
        self.error: Any = None
        self._prepared = prepared

    def arriving(self, pgconn: Any) -> Waiting:
        """Sends what is to be sent, and reads up to the end of the command's transaction."""
        while pgconn.flush():
            ready = yield Wait.RW
            if ready and ready & Ready.R:  # nothing, when psycopg waits on after an interrupt
                pgconn.consume_input()
        ended = False
        while not ended:
            while pgconn.is_busy():
                if (yield Wait.R):
                    pgconn.consume_input()
            ended = self._take(pgconn.get_result())
            if pgconn.status != ConnStatus.OK:
                why = "it was closed" if self.error is None else self.error.get_error_message()
                raise psycopg.OperationalError(f"the connection is lost: {why}")

    def _take(self, result: Any) -> bool:
        """Note a result (None: that was all of one statement's); whether it is the last."""
        if result is None:
            return False
        if result.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            self._prepared.is_there = True
        elif result.status != ExecStatus.PIPELINE_SYNC:
            self.error = self.error or result
        return bool(result.status == ExecStatus.PIPELINE_SYNC)
