"""What parent and child of a fork both use: no lock of it stays held in the child by a thread that is not there."""

import os
import signal

import pytest

from django_workqueue import Queue, engine, lanes
from django_workqueue.backend import aliases
from django_workqueue.dashboard import Memory
from django_workqueue.floors import Floors, InboxFloor
from django_workqueue.inbox import Inbox

USES = {
    "floors": (Floors(""), Floors.look),
    "inbox floor": (InboxFloor(), InboxFloor.since),
    "inbox": (Inbox("mail"), Inbox._left_alone),
    "dashboard": (Memory(), Memory.forget),
}
LOCKS = {
    "making a queue": (engine._sources_lock, lambda: Queue("forked")),
    "a first enqueue": (lanes._lock, lambda: lanes.commits("default")),
    "the queues of tasks": (aliases._lock, lambda: aliases._forget(setting="TASKS")),
    **{name: (made._lock, lambda made=made, call=call: call(made)) for name, (made, call) in USES.items()},
}


@pytest.mark.parametrize("use", LOCKS)
def test_a_child_forked_while_a_thread_of_its_parent_is_inside_uses_it_all_the_same(use):
    lock, call = LOCKS[use]
    with lock:
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)  # to be killed by it
                signal.alarm(20)
                call()
                os._exit(0)
            finally:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    call()
