"""`workqueue_partition`: a queue moves to a partition of its own and back while workers go on."""

import contextlib
import threading
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from psycopg import sql

from django_workqueue import JobQueue, Queue
from django_workqueue.managers.jobs import NewJobs
from django_workqueue.models import QueueRecord, WorkItem, WorkJob
from django_workqueue.partitions import PartitionError, create, drop, partitions

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE = "hot 'n' \\ quoted %s {Q} ü"


@pytest.fixture(autouse=True)
def _no_partitions_left():
    yield
    for partition in partitions():
        if partition.queue is not None:
            drop(partition.queue, partition.face, purge=True)


def command(*words: str) -> str:
    out = StringIO()
    call_command("workqueue_partition", *words, stdout=out)
    return out.getvalue()


def tables_of(queue: str, table: str) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT DISTINCT tableoid::regclass::text FROM {table} WHERE queue = %s", [queue])
        return {name.strip('"') for (name,) in cursor.fetchall()}


@pytest.mark.parametrize("face", ["items", "jobs"])
def test_create_moves_the_rows_and_drop_moves_them_back(face):
    if face == "items":
        queue = Queue(QUEUE)
        queue.enqueue("a", "b", "c")
        table = "workqueue_item"
    else:
        queue = JobQueue(QUEUE)
        queue.enqueue_many("kind", [1, 2, 3])
        table = "workqueue_job"
    command("create", QUEUE)
    own = tables_of(QUEUE, table)
    assert len(own) == 1
    assert own != {f"{table}_default"}
    assert QUEUE in [partition.queue for partition in partitions()]
    assert repr(QUEUE) in command("list")
    assert queue.complete(*queue.claim(limit=1)) == 1
    command("drop", QUEUE)
    assert tables_of(QUEUE, table) == {f"{table}_default"}
    assert queue.stats().ready == 2
    assert len(queue.claim()) == 2


def test_purge_deletes_the_rows():
    queue = Queue("hot")
    queue.enqueue("a")
    command("create", "hot")
    with transaction.atomic():
        queue.enqueue("b")
        Queue("cold").enqueue("c")
    command("drop", "hot", "--purge")
    assert queue.claim() == []
    assert [item.key for item in Queue("cold").claim()] == ["c"]


def test_an_own_partition_is_claimed_as_cheaply_with_hot_updates():
    create("hot", "items")
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
            WHERE c.relname LIKE 'workqueue_item_hot_%' AND i.indisvalid
            """
        )
        assert cursor.fetchone() == (4,)
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname LIKE 'workqueue_item_hot_%' AND relkind = 'r'")
        assert "fillfactor=50" in cursor.fetchone()[0]
        cursor.execute(
            "SELECT attstattarget FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
            "WHERE c.relname LIKE 'workqueue_item_hot_%' AND c.relkind = 'r' AND attname = 'queue'"
        )
        assert cursor.fetchone() == (0,)


def test_refusals_say_what_is_wrong():
    with pytest.raises(CommandError, match="nobody has used a queue 'unheard of'"):
        command("create", "unheard of")
    with pytest.raises(CommandError, match="no partition of its own"):
        command("drop", "plain", "--face", "items")
    create("twice", "items")
    with pytest.raises(PartitionError, match="already"):
        create("twice", "items")
    with pytest.raises(PartitionError, match="no partition of its own"):
        drop("plain", "items")


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["create", "twice", "--face", "items"], "has a partition of its own already"),
        (["drop", "plain"], "has no partition of its own"),
        (["drop", "nowhere"], "has no partition of its own"),
        (["drop", "twice", "--face", "jobs"], "has no partition of its own"),
    ],
)
def test_what_cannot_be_done_is_refused_before_it_is_said_how_long_it_would_take(words, refusal):
    create("twice", "items")
    Queue("plain").enqueue("a")
    out = StringIO()
    with pytest.raises(CommandError, match=refusal):
        call_command("workqueue_partition", *words, stdout=out)
    assert not out.getvalue()


@pytest.mark.parametrize("name", ["", "n" * 129, "ü" * 65, "two\nlines"])
def test_a_name_that_no_queue_can_have_is_refused_in_the_words_of_that_rule(name):
    with pytest.raises(ValueError, match="a queue's name") as rule:
        Queue(name)
    for made in (lambda: command("create", name, "--face", "jobs"), lambda: create(name, "jobs")):
        with pytest.raises((CommandError, PartitionError)) as refused:
            made()
        assert str(refused.value) == str(rule.value)
    assert [partition.queue for partition in partitions()] == [None, None]


KNOWN = {
    "a job queue's record": lambda name: QueueRecord.objects.create(name=name, face="jobs"),
    "a keyed queue's record": lambda name: QueueRecord.objects.create(name=name, face="items"),
    "a job": lambda name: WorkJob.objects.enqueue_inside(name, NewJobs(["kind"], ["1"], [0], [1], [0], [0], ["{}"])),
    "an item": lambda name: WorkItem.objects.enqueue(name, ["a"], [0], [0]),
    "an item in the inbox": lambda name: WorkItem.objects.enqueue_later(name, ["a"], [0], [0], 0),
}


@pytest.mark.parametrize("by", KNOWN)
def test_a_partition_for_the_face_that_a_queue_does_not_have_is_refused(by):
    face, other, words = ("jobs", "items", "a job queue") if "job" in by else ("items", "jobs", "a keyed queue")
    KNOWN[by]("known")
    for made in (lambda: command("create", "known", "--face", other), lambda: create("known", other)):
        with pytest.raises((CommandError, PartitionError), match=f"queue 'known' is {words}"):
            made()
    command("create", "known", "--face", face)


def test_where_both_faces_have_the_name_it_is_asked_which_is_meant():
    create("both", "items")
    create("both", "jobs")
    with pytest.raises(CommandError, match="which face"):
        command("drop", "both")
    assert len(partitions()) == 4
    command("drop", "both", "--face", "jobs")
    command("drop", "both")
    with connection.cursor() as cursor:  # rows only: an enqueue is soon followed by a record of the queue
        cursor.execute("INSERT INTO workqueue_job (queue, kind, max_attempts) VALUES ('both', 'kind', 1)")
        cursor.execute("INSERT INTO workqueue_item (queue, key) VALUES ('both', 'a')")
    with pytest.raises(CommandError, match="which face"):
        command("create", "both")
    command("create", "both", "--face", "jobs")


def test_a_partition_of_a_queue_that_nobody_has_used_is_dropped_without_its_face():
    create("unheard of", "jobs")
    assert "gone" in command("drop", "unheard of")


def test_the_help_names_durations_in_words():
    out = StringIO()
    with pytest.raises(SystemExit), contextlib.redirect_stdout(out):
        call_command("workqueue_partition", "create", "--help")
    assert "longer than 2 s" in " ".join(out.getvalue().split())


@pytest.mark.parametrize("comment", [None, "the hot one"])
def test_a_partition_that_another_made_is_known_by_its_bound(comment):
    with connection.cursor() as cursor:
        own = sql.Identifier("workqueue_item_by_hand")
        made = "CREATE TABLE {} PARTITION OF workqueue_item FOR VALUES IN ({})"
        cursor.execute(sql.SQL(made).format(own, sql.Literal(QUEUE)))
        cursor.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(own, sql.Literal(comment)))
    assert QUEUE in [partition.queue for partition in partitions()]
    with pytest.raises(PartitionError, match="already"):
        create(QUEUE, "items")
    drop(QUEUE, "items")
    assert QUEUE not in [partition.queue for partition in partitions()]


@pytest.mark.parametrize("words", [["list"], ["create", "hot"], ["drop", "hot", "--face", "items"]])
def test_a_database_without_our_tables_is_told_in_a_sentence(words):
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA without_tables")
        cursor.execute("SET search_path = without_tables")
        try:
            with pytest.raises(CommandError, match=r"Run `manage\.py migrate`"):
                command(*words)
        finally:
            cursor.execute("RESET search_path")
            cursor.execute("DROP SCHEMA without_tables")


@pytest.mark.parametrize("words", [["list"], ["create", "hot"], ["drop", "hot"]])
def test_an_unknown_alias_is_refused_with_a_list_of_the_known(words):
    for given in (["--database", "nowhere", *words], [*words, "--database", "nowhere"]):
        with pytest.raises(CommandError, match=r"nowhere.*Those there are: default, other"):
            command(*given)


@pytest.mark.django_db(transaction=False)
def test_refuses_inside_a_transaction():
    with pytest.raises(PartitionError, match="atomic"):
        create("hot", "items")


def test_a_long_stall_wants_force(monkeypatch):
    Queue("hot").enqueue("a")
    monkeypatch.setattr("django_workqueue.partitions.ROWS_PER_SECOND", 0.1)
    with pytest.raises(CommandError, match="--force"):
        command("create", "hot")
    assert "partition" in command("create", "hot", "--force")


def test_locks_that_others_hold_are_waited_for_briefly_and_asked_for_again(second, aside, wait_until):
    queue = Queue("hot")
    queue.enqueue("a")
    second.execute("BEGIN")
    second.execute("LOCK TABLE workqueue_item_default IN ROW EXCLUSIVE MODE")

    def carve():
        try:
            return create("hot", "items")
        finally:
            connections.close_all()

    creating = aside(carve)
    queue.enqueue("b", timeout=5)  # not shut out for good while the locks are asked for
    assert not creating.done()
    second.execute("COMMIT")
    assert creating.result(30).queue == "hot"
    assert queue.stats().ready == 2


@pytest.mark.parametrize("face", ["items", "jobs"])
def test_nothing_is_lost_when_partitions_come_and_go_under_four_live_workers(face):
    of_jobs = face == "jobs"
    queue = JobQueue("hot", retention=timedelta(0)) if of_jobs else Queue("hot", retention=timedelta(0))
    name_of = (lambda work: work.payload) if of_jobs else (lambda work: work.key)
    enqueue = (lambda name: queue.enqueue("kind", name)) if of_jobs else queue.enqueue
    seen: list[str] = []
    stop = threading.Event()
    errors: list[BaseException] = []

    def work():
        try:
            while not stop.is_set():
                works = queue.claim(50, lease=timedelta(seconds=30))
                queue.complete(*works)
                seen.extend(map(name_of, works))
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    def produce(name: str):
        try:
            for number in range(1500):
                enqueue(f"{name}-{number}")
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    producers = [threading.Thread(target=produce, args=(name,)) for name in "abcd"]
    for thread in workers + producers:
        thread.start()
    for _ in range(3):
        create("hot", face)
        drop("hot", face)
    for thread in producers:
        thread.join()
    stop.set()
    for thread in workers:
        thread.join()
    while works := queue.claim():
        seen.extend(map(name_of, works))
        queue.complete(*works)
    assert errors == []
    assert sorted(seen) == sorted(f"{name}-{number}" for name in "abcd" for number in range(1500))
