"""How long to wait before the next attempt."""

import random
from collections.abc import Callable
from datetime import timedelta

Backoff = Callable[[int], timedelta]


def exponential(
    base: timedelta = timedelta(seconds=2),
    ceiling: timedelta = timedelta(seconds=256),
    jitter: float = 0.25,
) -> Backoff:
    """A backoff that doubles: `base` after the first attempt, up to `ceiling`, plus up to `jitter` of itself.

    With the defaults 2 s, 4 s, 8 s … 256 s, each plus up to 25 %. Raises `ValueError` for a base that is
    not positive, a ceiling under the base, or a negative jitter.
    """
    if base <= timedelta(0) or ceiling < base or jitter < 0:
        raise ValueError(
            "exponential() wants 0 < base <= ceiling and jitter >= 0; "
            f"got base={base}, ceiling={ceiling}, jitter={jitter}"
        )
    doublings = 0
    while base * 2**doublings < ceiling:
        doublings += 1

    def delay(attempts: int) -> timedelta:
        wait: timedelta = min(base * 2 ** min(max(attempts - 1, 0), doublings), ceiling)
        return wait + wait * jitter * random.random()

    return delay
