"""The threads that run sync handlers.

They take work from the lanes' hands by themselves, one piece at a time, and put its outcome where the settler
looks: no queue, future or lock for each piece. Claiming and settling is for others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from time import monotonic

from . import journal
from .lane import Batch, Lane
from .slot import Slot
from .starts import Starter
from .timeouts import Watchdog

AGED = 10.0  # seconds of idleness after which a thread looks whether its connections are too old


class Pool:
    """`size` threads for these lanes. `dropped` is told of work that ran past its timeout, `worn_out` that too
    many threads were lost to handlers that ignore theirs."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        size: int,
        *,
        starter: Starter,
        dropped: Callable[[Batch, Sequence[object]], None],
        worn_out: Callable[[], None],
    ) -> None:
        self.lanes = list(lanes)
        self.size = size
        self.starter = starter
        self.leaked = 0
        self.closing = False
        self._dropped = dropped
        self._worn_out = worn_out
        self._slots: list[Slot] = []
        self._sleepers: deque[None] = deque()  # one entry for each thread that sleeps and was not yet woken
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self.watchdog = Watchdog(self._rang, self._given_up) if self._has_timeouts() else None

    @property
    def idle(self) -> int:
        """How many threads have nothing to do."""
        return len(self._sleepers)

    @property
    def shared(self) -> bool:
        """Whether the threads have more than one lane to look after."""
        return len(self.lanes) > 1

    def start(self) -> None:
        """Start the threads; they sleep until woken."""
        if self.watchdog is not None:
            self.watchdog.start()
        for _ in range(self.size):
            self._add_slot()

    def wake(self) -> None:
        """There is work in hand: wake a thread, which wakes the next."""
        try:
            self._sleepers.pop()
        except IndexError:
            return
        self._wakes.put(None)

    def close(self, deadline: float) -> bool:
        """Let the threads end, waiting for them until `deadline`; whether all did."""
        self.closing = True
        for _ in self._slots:
            self._wakes.put(None)
        for slot in self._slots:
            slot.thread.join(max(0.0, deadline - monotonic()))
        if self.watchdog is not None:
            self.watchdog.stop()
        return not any(slot.thread.is_alive() for slot in self._slots)

    def take(self, slot: Slot) -> Lane | None:
        """The next lane for a thread to work on, in turn; it holds one of the lane's permits."""
        lanes = self.lanes
        for _ in lanes:
            slot.turn = (slot.turn + 1) % len(lanes)
            lane = lanes[slot.turn]
            if lane.hand and _admit(lane):
                if self._sleepers and (len(lane.hand) > (lane.size or 1) or self.shared):
                    self.wake()
                return lane
        return None

    def leave(self, lane: Lane) -> None:
        """A thread has done its turn on a lane."""
        if lane.permits is not None:
            lane.permits.append(None)

    def rest(self, *, connected: bool) -> bool:
        """Sleep until there may be work; False: nothing came for a while. With connections, sleep in short turns."""
        self._sleepers.append(None)
        if self.closing or any(lane.hand and (lane.permits is None or lane.permits) for lane in self.lanes):
            try:
                self._sleepers.pop()
            except IndexError:  # somebody woke us in the meantime
                self._wakes.get()
            return True
        for lane in self.lanes:
            if lane.hungry:
                lane.ask()
        try:
            self._wakes.get(timeout=AGED if connected else None)
        except Empty:
            try:
                self._sleepers.pop()
            except IndexError:
                self._wakes.get()
                return True
            return False
        return True

    def ended(self, slot: Slot) -> None:
        """A slot's thread ends."""
        if self.watchdog is not None:
            self.watchdog.remove(slot)
        if slot.leaked:
            self.leaked -= 1

    def _add_slot(self) -> None:
        slot = Slot(self, len(self._slots))
        self._slots.append(slot)
        slot.thread.start()

    def _has_timeouts(self) -> bool:
        return any(
            lane.source.finder is not None or any(handler.timeout is not None for handler in lane.handlers)
            for lane in self.lanes
        )

    def _rang(self, slot: Slot) -> None:
        current = slot.current
        if current is not None:
            batch, works = current
            self._dropped(batch, works if batch.lane.size is not None else [works])

    def _given_up(self, slot: Slot) -> None:
        slot.leaked = True
        self.leaked += 1
        slot.report_leak()
        if self.closing:
            return
        if self.leaked * 2 >= self.size:
            journal.worn_out(self.leaked, self.size)
            self._worn_out()
        else:
            self._add_slot()


def _admit(lane: Lane) -> bool:
    if lane.permits is None:
        return True
    try:
        lane.permits.popleft()
    except IndexError:
        return False
    return True
