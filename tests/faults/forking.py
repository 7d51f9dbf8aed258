"""A process that enqueues, makes others by multiprocessing that enqueue, and ends as it is told."""

import multiprocessing
import os
import sys
import threading

import django


def child(number: int) -> None:
    from tests.faults.producing import ask

    for at in range(5):
        assert ask("faults-keys", [f"child-{os.getpid()}-{number}-{at}"])


def setting_up(number: int) -> None:
    django.setup()
    child(number)


def main() -> None:
    how = sys.argv[1]
    django.setup()
    from tests.faults.producing import ask
    from tests.faults.works.tasks import keys

    if how == "exit":  # while a batch is being written, and with posts that nobody waits for
        threads = [
            threading.Thread(target=ask, args=("faults-keys", [f"exit-{number}"]), name=f"exit-{number}")
            for number in range(20)
        ]
        for thread in threads:
            thread.start()
        return
    if how == "flush":  # until it is killed
        number = 0
        while True:
            number += 1
            ask("faults-keys", [f"flush-{os.getpid()}-{number}-{at}" for at in range(50)])
    context = multiprocessing.get_context(how)
    assert ask("faults-keys", [f"before-{how}"])
    children = [context.Process(target=setting_up, args=(number,)) for number in range(4)]
    for each in children:
        each.start()
    for at in range(20):
        assert ask("faults-keys", [f"beside-{how}-{at}"])
    for each in children:
        each.join(60)
        assert each.exitcode == 0, each.exitcode
    assert ask("faults-keys", [f"after-{how}"])
    keys.close()


if __name__ == "__main__":
    main()
