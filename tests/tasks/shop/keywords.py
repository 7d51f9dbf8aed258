"""Tasks with options of their own, where the decorator takes them. No worker imports this module by itself."""

import time

from tests.tasks.native import TAKES_KEYWORDS, task

if TAKES_KEYWORDS:

    @task(max_attempts=3, backoff="tests.tasks.shop.tasks.at_once")  # type: ignore[call-overload]
    def fail_three_times() -> None:
        raise ValueError("again")

    @task(timeout=0.2)  # type: ignore[call-overload]
    def sleep_for_long() -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            time.sleep(0.01)
