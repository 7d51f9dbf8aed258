"""`workqueue_partition list | create QUEUE | drop QUEUE`: give a hot queue a partition of its own, or take it back."""

from argparse import SUPPRESS, ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_workqueue import partitions, unmigrated
from django_workqueue.database import resolve
from django_workqueue.management.asking import told
from django_workqueue.partitions import FREE, Partition

FREE_SECONDS = f"{FREE.total_seconds():g}"


class Command(BaseCommand):
    """Parses, calls `partitions`, prints."""

    help = "List, create or drop the partitions of single queues, online."

    def add_arguments(self, parser: ArgumentParser) -> None:
        alias: dict[str, Any] = {"metavar": "ALIAS", "help": "the database alias; WORKQUEUE_DATABASE if not given"}
        parser.add_argument("--database", **alias)
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="list | create QUEUE | drop QUEUE")
        listing = verbs.add_parser("list", help="show every partition")
        create = verbs.add_parser("create", help="give a queue a partition of its own, and move its rows there")
        drop = verbs.add_parser("drop", help="move a queue's rows back to DEFAULT, and drop its partition")
        for verb in (listing, create, drop):
            verb.add_argument("--database", default=SUPPRESS, **alias)  # or it would undo what stands before the verb
        for verb in (create, drop):
            verb.add_argument("queue", metavar="QUEUE")
            verb.add_argument(
                "--face", choices=sorted(partitions.TABLES), help="for a name nobody has used yet, or both have"
            )
            verb.add_argument(
                "--force", action="store_true", help=f"hold the lock for longer than {FREE_SECONDS} s, if need be"
            )
        drop.add_argument("--purge", action="store_true", help="delete the queue's rows instead of moving them")

    def handle(self, *, verb: str, database: str | None, **options: Any) -> None:
        with told():
            if verb == "list":
                self._list(database)
            else:
                self._change(verb, database, **options)

    def _list(self, database: str | None) -> None:
        for partition in self._found(database):
            queue = "(all others)" if partition.queue is None else repr(partition.queue)
            size = f"{partition.bytes / 1_048_576:.1f} MiB"
            self.stdout.write(f"{partition.face:5}  {queue}  {partition.table}  about {partition.rows:,} rows  {size}")

    def _found(self, database: str | None) -> list[Partition]:
        found = partitions.partitions(database)
        if not found:  # for there is always DEFAULT
            raise CommandError(unmigrated.sentence(resolve(database)))
        return found

    def _change(
        self,
        verb: str,
        database: str | None,
        *,
        queue: str,
        face: str | None,
        force: bool,
        purge: bool = False,
        **_: Any,
    ) -> None:
        self._found(database)
        target = partitions.to_create if verb == "create" else partitions.to_drop
        face = target(queue, face, database)
        stall = partitions.stall(queue, face, database)
        self.stdout.write(f"This holds up the table of {face} for about {stall.total_seconds():.1f} s.")
        if stall > FREE and not force and not purge:
            raise CommandError(f"That is longer than {FREE_SECONDS} s. Choose a quiet hour, then give --force.")
        if verb == "create":
            made = partitions.create(queue, face, database)
            self.stdout.write(self.style.SUCCESS(f"Queue {queue!r} has the partition {made.table} now."))
        else:
            partitions.drop(queue, face, database, purge=purge)
            done = "deleted" if purge else "back in DEFAULT"
            self.stdout.write(self.style.SUCCESS(f"The partition is gone; the rows of queue {queue!r} are {done}."))
