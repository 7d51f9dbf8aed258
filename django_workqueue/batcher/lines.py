"""Who is next: calls in line, one line for each lane, the lanes in turn, with a bound on what is taken on.

Neither locks nor waits; the batcher calls it under its own lock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from typing import Any

from .calls import Call, Lane


class Lines:
    """The calls that no batch has picked up completely. `calls` counts them.

    `room` is how many entries can still be admitted. A call that finds too little is admitted piece by piece,
    after those that came before it; until then its entries are its caller's, who takes them along on leaving.
    """

    def __init__(self, room: int) -> None:
        self.calls = 0
        self._most = self._room = room
        self._lines: OrderedDict[Lane[Any, Any], deque[Call]] = OrderedDict()  # the next lane to serve is first
        self._outside: deque[Call] = deque()  # in line, and not fully admitted

    def append(self, call: Call) -> None:
        """Line the call up."""
        line = self._lines.get(call.lane)
        if line is None:
            line = self._lines[call.lane] = deque()
        line.append(call)
        self.calls += 1
        if call.size <= self._room:
            call.admitted = call.size
            self._room -= call.size
        else:
            self._outside.append(call)
            self._admit()

    def take(self, most: int, aside: Collection[Lane[Any, Any]] = ()) -> tuple[Lane[Any, Any], list[Call]] | None:
        """The next batch: the first entries, weighing `most`, of the lane whose turn it is, which goes to the back.

        Lanes `aside` keep their turn.
        """
        lane = next((lane for lane in self._lines if lane not in aside), None)
        if lane is None:
            return None
        line = self._lines.pop(lane)
        calls: list[Call] = []
        while line and most > 0:
            call = line[0]
            room = most // call.weight
            if not room and calls:
                break
            start, stop = call.taken, min(call.size, call.taken + max(room, 1))
            self._room += max(min(call.admitted, stop) - start, 0)
            call.taken = stop
            call.admitted = max(call.admitted, stop)
            calls.append(call)
            most -= (stop - start) * call.weight
            if stop < call.size:
                break
            line.popleft()
            self.calls -= 1
        if line:
            self._lines[lane] = line
        elif not self._lines:
            self._room, self.calls = self._most, 0  # exactly, whatever interrupted a caller between two sums
        self._admit()
        return lane, calls

    def leave(self, call: Call) -> None:
        """The caller is gone: what was admitted stays in line, the rest does not."""
        call.left = True
        if call.admitted < call.size:
            _discard(self._outside, call)
            call.truncate()
            if call.taken == call.size:
                self.remove(call)

    def remove(self, call: Call) -> None:
        """Take what is left of the call out of its line, if it is in it."""
        if call.admitted < call.size:
            _discard(self._outside, call)
        line = self._lines.get(call.lane)
        if line is not None and _discard(line, call):
            self.calls -= 1
            self._room += max(call.admitted - call.taken, 0)
            if not line:
                del self._lines[call.lane]
        self._admit()

    def clear(self, lanes: Collection[Lane[Any, Any]]) -> list[Call]:
        """Empty these lanes' lines; who stood in them."""
        calls = [call for lane in lanes for call in self._lines.get(lane, ())]
        for call in calls:
            self.remove(call)
        return calls

    @property
    def admitted(self) -> int:
        """How many entries were taken on and wait for their write."""
        return self._most - self._room

    def only(self, lane: Lane[Any, Any]) -> bool:
        """Whether nobody is in line in any other lane."""
        return len(self._lines) == (lane in self._lines)

    def lanes(self) -> list[Lane[Any, Any]]:
        """Those with somebody in line."""
        return list(self._lines)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def _admit(self) -> None:
        """Give the room there is to those who wait for it, first come first served."""
        while self._outside:
            call = self._outside[0]
            granted = min(call.size - call.admitted, self._room)
            call.admitted += granted
            self._room -= granted
            if call.admitted < call.size:
                return
            self._outside.popleft()


def _discard(calls: deque[Call], call: Call) -> bool:
    """Take the call out; whether it was in."""
    try:
        calls.remove(call)
    except ValueError:
        return False
    return True
