"""Under load: no key loses its last update, and no two writers deadlock."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

from django.db import transaction

from tests import conftest as house
from tests import interleave
from tests.keyed.churn import run_threads

SECONDS = 2.5


def test_crashing_consumers_lapsed_leases_and_constant_re_enqueues_lose_no_keys_last_update(make_queue, aside):
    """A producer changes a key's version, then enqueues it; a run sees the version there is when it starts.

    Whatever consumers did meanwhile (die, fail, finish too late), at the end each key was seen at its last version:
    every enqueue that was acknowledged was followed by a run. (If that failed thrice, the key has stalled.)
    """
    queue = make_queue(max_attempts=3, retention=timedelta(0))
    keys = [f"{number:02}" for number in range(12)]
    wanted, seen = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0)
    lock = threading.Lock()  # guards both
    stop = time.monotonic() + SECONDS
    counts = {"enqueued": 0, "runs": 0, "abandoned": 0, "late": 0}

    def produce(seed):
        dice = random.Random(seed)
        while time.monotonic() < stop:
            key = dice.choice(keys)
            with lock:
                wanted[key] += 1
                counts["enqueued"] += 1
            if dice.random() < 0.4:
                with transaction.atomic():
                    queue.enqueue(key, priority=dice.randrange(2))
            else:
                queue.enqueue(key, delay=timedelta(milliseconds=dice.choice([0, 0, 20])))

    def consume(seed, until):
        dice = random.Random(seed)
        while True:
            lease = timedelta(milliseconds=dice.choice([30, 60, 2000]))
            items = queue.claim(limit=4, lease=lease)
            claimed = time.monotonic()
            for item in items:
                with lock:
                    seen[item.key] = wanted[item.key]
                    counts["runs"] += 1
                fate = dice.random()
                if fate < 0.15:
                    counts["abandoned"] += 1
                    continue
                if fate < 0.3:
                    queue.release(item, error="no", delay=timedelta(milliseconds=dice.choice([0, 10])))
                    continue
                if fate < 0.45 and lease < timedelta(seconds=1):
                    counts["late"] += 1
                    interleave.wait_until(lambda: time.monotonic() > claimed + 0.07)  # noqa: B023
                queue.complete(item)
            if not items and time.monotonic() > until:
                return

    working = [aside(produce, seed) for seed in range(3)] + [aside(consume, seed, stop) for seed in range(10, 14)]
    for each in working:
        each.result(60)

    def settled():
        for item in queue.claim(lease=timedelta(seconds=30)):
            seen[item.key] = wanted[item.key]
            queue.complete(item)
        stats = queue.stats()
        return not stats.pending and not stats.leased

    interleave.wait_until(settled, 20)
    assert seen == wanted
    assert min(counts.values()) > 10, counts


def test_the_leases_of_a_process_that_is_killed_are_handed_out_again(queue, table, wait_until):
    queue.enqueue("a", "b", "c")
    script = (
        "import django; django.setup(); import sys, time; from datetime import timedelta;"
        "from django_workqueue import Queue;"
        f"print(len(Queue({queue.name!r}).claim(2, timedelta(seconds=2))), flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=os.environ | house.environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "2\n"
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate(timeout=10)
    claimed = []
    wait_until(lambda: claimed.extend(queue.claim(lease=timedelta(minutes=5))) or len(claimed) == 3)
    assert sorted((item.key, item.attempts, item.reclaimed) for item in claimed) == [
        ("a", 2, True),
        ("b", 2, True),
        ("c", 1, False),
    ]


def test_two_processes_of_eight_threads_on_the_same_hot_keys_never_deadlock(make_queue, wait_until):
    queue = make_queue(max_attempts=3, retention=timedelta(0))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.keyed.churn", queue.name, str(SECONDS), "8"],
        env=os.environ | house.environment(),
        cwd=house.PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: queue.claim(limit=1) or process.poll() is not None, 30)  # it has begun
        errors = run_threads(queue, SECONDS, 8, seed=0)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, output, errors) == (0, "", [])
