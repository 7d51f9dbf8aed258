"""`workqueue_stats`, `workqueue_reap`, and what they stand on: which queues there are, and how figures are written."""

import io
import json
import re
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections

from django_workqueue import JobQueue, Queue, discovery, inventory, stats
from django_workqueue.management.columns import aligned, duration, number
from django_workqueue.management.commands import workqueue_stats

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


class Terminal(io.StringIO):
    """What a terminal would show."""

    def isatty(self) -> bool:
        return True


def run(*arguments: str, out: io.StringIO | None = None) -> str:
    """What a command prints."""
    out = out or io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def held(*arguments: str) -> dict[str, dict[str, Any]]:
    """What `workqueue_stats --json` says, by queue."""
    return {found["queue"]: found for found in json.loads(run("workqueue_stats", *arguments, "--json"))}


def execute(sql: str, *params: Any, alias: str = "default") -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(sql.replace("{now}", "statement_timestamp()"), params or None)


def add_item(queue: str, *, alias: str = "default", **columns: str) -> None:
    columns = {"key": "gen_random_uuid()::text"} | columns
    names, values = ", ".join(columns), ", ".join(columns.values())
    execute(f"INSERT INTO workqueue_item (queue, {names}) VALUES (%s, {values})", queue, alias=alias)


def add_job(queue: str, **columns: str) -> None:
    columns = {"kind": "'k'", "max_attempts": "3"} | columns
    names, values = ", ".join(columns), ", ".join(columns.values())
    execute(f"INSERT INTO workqueue_job (queue, {names}) VALUES (%s, {values})", queue)


def record(queue: str, face: str = "items", **settings: float) -> None:
    execute("INSERT INTO workqueue_queue (name, face, settings) VALUES (%s, %s, %s)", queue, face, json.dumps(settings))


# Which queues


def test_a_queue_of_this_process_is_shown_though_it_holds_nothing():
    queue = Queue("only an object")
    found = held("only an object")
    assert found["only an object"]["pending"] == 0
    assert queue.name in held()


def test_a_queue_that_is_only_recorded_is_shown_as_its_record_has_it_set_up():
    record("only recorded", max_attempts=3, retention=60.0)
    add_item("only recorded", attempts="3", lease_until="{now} - interval '1 second'")
    assert held()["only recorded"]["stalled"] == 1


@pytest.mark.parametrize(
    ("face", "add"),
    [
        ("items", add_item),
        ("items", lambda name: Queue("another").source.table().enqueue_later(name, ["a"], [0], [0], 7)),
        ("jobs", add_job),
        ("jobs", lambda name: add_job(name, outcome="'completed'", finished_at="{now}")),
    ],
)
def test_a_queue_that_only_has_rows_is_shown(face, add):
    for name in ("a", "it's", "ünï % {Q}"):
        add(name)
    found = held()
    for name in ("a", "it's", "ünï % {Q}"):
        assert found[name]["face"] == face
        assert found[name]["pending"] + found[name]["completed"] == 1


def test_queues_are_shown_in_the_order_of_their_names():
    for name in ("b", "a", "ä", "B"):
        add_item(name)
    assert [name for name in held() if len(name) == 1] == ["B", "a", "b", "ä"]


def test_a_name_restricts_what_is_shown():
    add_item("a")
    add_item("b")
    add_item("c")
    assert list(held("c", "a", "c")) == ["a", "c"]


@pytest.mark.parametrize("command", ["workqueue_stats", "workqueue_reap"])
def test_an_unknown_name_is_refused_with_a_list_of_the_known(command):
    add_item("tiles")
    with pytest.raises(CommandError, match=r"there is no queue 'mail', 'tile'\. Those there are: .*'tiles'"):
        run(command, "tile", "tiles", "mail")


@pytest.mark.django_db(databases=["default", "other"])
def test_queues_of_every_alias_in_use_are_shown_each_with_its_own():
    elsewhere = Queue("twice", using="other")
    add_item("twice")
    add_item("twice", alias="other")
    add_item("twice", alias="other", available_at="{now} + interval '1 hour'")
    table = run("workqueue_stats", "twice")
    assert [line.split()[:4] for line in table.splitlines()] == [
        ["queue", "database", "pending", "ready"],
        ["twice", "default", "1", "1"],
        ["twice", "other", "2", "1"],
    ]
    assert "database" not in run("workqueue_stats", "twice", "--database", "default")
    assert held("twice", "--database", "other")["twice"]["pending"] == 2
    assert elsewhere.using == "other"


@pytest.mark.django_db(databases=["default", "other"])
def test_an_alias_that_no_queue_is_on_is_left_in_peace():
    add_item("on the other", alias="other")
    assert "on the other" not in held()
    assert "on the other" in held("--database", "other")


@pytest.mark.parametrize("command", ["workqueue_stats", "workqueue_reap"])
def test_an_unknown_alias_is_refused_with_a_list_of_the_known(command):
    with pytest.raises(CommandError, match=r"nowhere.*Those there are: default, other"):
        run(command, "--database", "nowhere")


@pytest.mark.parametrize("command", ["workqueue_stats", "workqueue_reap"])
def test_a_database_without_our_tables_is_told_in_a_sentence(command):
    execute("ALTER TABLE workqueue_queue RENAME TO gone")
    said = r"Database 'default' has no tables of django_workqueue yet\. Run `manage\.py migrate`\."
    with pytest.raises(CommandError, match=said):
        run(command)


def test_a_look_for_names_that_takes_too_long_shows_those_that_are_recorded(monkeypatch):
    record("recorded", max_attempts=0, retention=1.0)
    add_item("only rows")
    monkeypatch.setattr(inventory.sql.NAMES, "text", "SELECT pg_sleep(600)")
    monkeypatch.setattr(inventory, "PATIENCE", timedelta(milliseconds=20))
    found = held()
    assert "recorded" in found
    assert "only rows" not in found


# What is shown


def test_the_table_shows_each_state_in_a_column_of_its_own():
    add_item("tiles")
    add_item("tiles", available_at="{now} - interval '3725 seconds'")
    add_item("tiles", available_at="{now} + interval '1 hour'")
    for _ in range(4):
        add_item("tiles", lease_until="{now} + interval '1 hour'")
    for _ in range(5):
        add_item("tiles", stalled_at="{now}")
    for _ in range(1234):
        add_item("tiles", completed_at="{now}")
    assert run("workqueue_stats", "tiles").splitlines() == [
        "queue  pending  ready  scheduled  leased  stalled  completed  oldest ready age",
        "tiles        3      2          1       4        5      1,234         1 h 2 min",
    ]


def test_json_has_the_same_keys_for_every_queue():
    add_item("tiles", available_at="{now} - interval '60 seconds'")
    add_job("mail", outcome="'dead'", finished_at="{now}")
    found = held("tiles", "mail")
    age = found["tiles"].pop("oldest_ready_age")
    assert age == pytest.approx(60, abs=20)
    common = {"database": "default", "paused": False, "exact": False, "scheduled": 0, "leased": 0, "completed": 0}
    assert found["tiles"] == common | {"queue": "tiles", "face": "items", "pending": 1, "ready": 1, "stalled": 0}
    assert found["mail"] == common | {
        "queue": "mail",
        "face": "jobs",
        "pending": 0,
        "ready": 0,
        "stalled": 1,
        "oldest_ready_age": 0.0,
    }


def test_a_paused_queue_is_marked():
    queue = Queue("resting")
    queue.pause()
    assert run("workqueue_stats", "resting").splitlines()[1].startswith("resting (paused)  ")
    assert held("resting")["resting"]["paused"] is True
    queue.resume()
    assert held("resting")["resting"]["paused"] is False


def test_estimates_are_marked_and_exact_counts_are_not(monkeypatch):
    for module in (stats, workqueue_stats):
        monkeypatch.setattr(module, "EXACT_TO", 10)
    execute("INSERT INTO workqueue_item (queue, key) SELECT 'tiles', g FROM generate_series(1, 12345) g")
    assert re.search(r" ~1[123],\d00 ", run("workqueue_stats", "tiles"))
    assert " 12,345 " in run("workqueue_stats", "tiles", "--exact")
    assert held("tiles", "--exact")["tiles"]["exact"] is True


def test_where_there_is_no_queue_at_all_it_says_so(monkeypatch):
    monkeypatch.setattr(inventory.engine, "registered", list)
    assert run("workqueue_stats") == "There is no queue yet.\n"
    assert run("workqueue_stats", "--json") == "[]\n"


# The health probe


def test_the_probe_fails_where_something_was_ready_for_too_long_and_says_where():
    add_item("late", available_at="{now} - interval '185 seconds'")
    add_item("early", available_at="{now} - interval '5 seconds'")
    out = io.StringIO()
    with pytest.raises(CommandError) as failed:
        run("workqueue_stats", "late", "early", "--max-oldest-ready-age", "60", out=out)
    assert failed.value.returncode == 1
    assert str(failed.value).startswith("Ready for longer than 1 min: 'late' (3 min ")
    assert "early" not in str(failed.value)
    assert len(out.getvalue().splitlines()) == 3


def test_the_probe_may_ask_that_nothing_at_all_is_ready():
    add_item("late", available_at="{now} - interval '185 seconds'")
    with pytest.raises(CommandError, match=r"^Ready for longer than 0 s: 'late' \(3 min "):
        run("workqueue_stats", "late", "--max-oldest-ready-age", "0")


def test_the_probe_passes_where_nothing_was_ready_for_too_long():
    add_item("early", available_at="{now} - interval '5 seconds'")
    add_item("leased", available_at="{now} - interval '2 hours'", lease_until="{now} + interval '1 hour'")
    run("workqueue_stats", "early", "leased", "--max-oldest-ready-age", "60")


def test_the_probe_is_an_exit_status(manage):
    execute("INSERT INTO workqueue_item (queue, key, available_at) VALUES ('late', 'a', {now} - interval '1 hour')")
    late = manage("workqueue_stats", "--json", "--max-oldest-ready-age", "60.5")
    output, _ = late.communicate(timeout=60)
    assert late.returncode == 1
    assert "Ready for longer than 1 min: 'late' (1 h" in output
    assert '"queue": "late"' in output
    patient = manage("workqueue_stats", "--max-oldest-ready-age", "7200")
    patient.communicate(timeout=60)
    assert patient.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-oldest-ready-age", "soon"],
        ["--max-oldest-ready-age", "-1"],
        ["--max-oldest-ready-age", "nan"],
        ["--max-oldest-ready-age", "1e30"],
        ["--watch", "--interval", "0"],
        ["--watch", "--interval", "often"],
        ["--watch", "--max-oldest-ready-age", "60"],
    ],
)
def test_options_that_make_no_sense_are_refused(arguments):
    with pytest.raises(CommandError, match=r"seconds, not|not allowed with"):
        run("workqueue_stats", *arguments)


# Watching


@pytest.fixture
def between_frames(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`between_frames(*calls)`: what happens instead of waiting; after the last of them comes a Ctrl-C."""

    def set_calls(*calls: Callable[[], object]) -> None:
        left = list(calls)

        def sleep(seconds: float) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        monkeypatch.setattr(workqueue_stats.time, "sleep", sleep)

    return set_calls


def test_watching_redraws_in_place_on_a_terminal(between_frames):
    add_item("tiles")
    between_frames(lambda: add_item("tiles"))
    shown = run("workqueue_stats", "--watch", "tiles", "--interval", "60", out=Terminal())
    cleared, first, second = shown.split("\x1b[H")
    assert cleared == "\x1b[2J"
    assert first.count("\x1b[K\n") == first.count("\n") == 3
    assert first.endswith("\x1b[J")
    assert "tiles        1 " in first
    assert "tiles        2 " in second


def test_watching_without_a_terminal_prints_one_after_the_other(between_frames):
    add_item("tiles")
    between_frames(lambda: add_item("tiles"))
    shown = run("workqueue_stats", "tiles", "--watch")
    assert "\x1b" not in shown
    assert shown.count("queue  pending") == 2


def test_watching_as_json_prints_a_list_on_each_line(between_frames):
    add_item("tiles")
    between_frames(lambda: add_item("tiles"))
    lines = run("workqueue_stats", "tiles", "--watch", "--json", out=Terminal()).splitlines()
    assert [json.loads(line)[0]["ready"] for line in lines if line] == [1, 2]


def test_watching_shows_queues_that_come_later(between_frames):
    between_frames(lambda: add_item("new"))
    shown = run("workqueue_stats", "--watch")
    assert shown.count("\nnew ") == 1


@pytest.mark.django_db(transaction=True)
def test_watching_outlasts_a_lost_connection(between_frames, second):
    def lose() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone()
        second.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])

    add_item("tiles")
    between_frames(lose, lambda: None)
    shown = run("workqueue_stats", "tiles", "--watch")
    assert "The database does not answer; asking again." in shown
    assert shown.count("queue  pending") == 2


def test_watching_ends_cleanly_at_ctrl_c(manage):
    execute("INSERT INTO workqueue_item (queue, key) VALUES ('tiles', 'a')")
    process = manage("workqueue_stats", "tiles", "--watch", "--interval", "0.01")
    for _ in range(8):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in output


# Reaping


def test_reap_deletes_what_each_queue_has_kept_for_long_enough():
    short, long = Queue("short", retention=timedelta(minutes=1)), Queue("long", retention=24 * HOUR)
    for name in ("short", "long"):
        add_item(name, completed_at="{now} - interval '1 hour'")
        add_item(name, completed_at="{now}")
        add_item(name)
    assert run("workqueue_reap", "short", "long") == "long: 0 deleted\nshort: 1 deleted\n"
    assert (short.stats().completed, long.stats().completed) == (1, 2)


def test_reap_marks_what_is_out_of_attempts():
    queue = Queue("tried", max_attempts=2)
    add_item("tried", attempts="2", lease_until="{now} - interval '1 hour'")
    run("workqueue_reap", "tried")
    with connection.cursor() as cursor:
        cursor.execute("SELECT stalled_at IS NOT NULL FROM workqueue_item WHERE queue = 'tried'")
        assert cursor.fetchall() == [(True,)]
    assert queue.stats().stalled == 1


def test_reap_goes_by_the_record_of_a_queue_that_has_no_object_here():
    record("recorded", max_attempts=0, retention=7200.0)
    add_item("recorded", completed_at="{now} - interval '1 hour'")
    add_item("recorded", completed_at="{now} - interval '3 hours'")
    assert run("workqueue_reap", "recorded") == "recorded: 1 deleted\n"


def test_reap_leaves_alone_what_nobody_has_set_up():
    add_item("stray", completed_at="{now} - interval '1000 days'")
    record("paused only")
    add_item("paused only", completed_at="{now} - interval '1000 days'")
    shown = run("workqueue_reap", "stray", "paused only")
    assert shown.splitlines()[0].startswith("paused only: left alone")
    assert shown.splitlines()[1].startswith("stray: left alone")
    assert held("stray")["stray"]["completed"] == 1


@pytest.mark.parametrize("known", ["by an object", "by its record"])
def test_reap_keeps_dead_jobs_longer_than_completed_ones(known):
    if known == "by an object":
        queue = JobQueue("mail", retention=HOUR, dead_retention=24 * HOUR)
        assert queue.name == "mail"
    else:
        record("mail", "jobs", max_attempts=5, retention=3600.0, dead_retention=86400.0)
    for outcome in ("'completed'", "'dead'", "'cancelled'"):
        for age in ("1 minute", "2 hours", "2 days"):
            add_job("mail", outcome=outcome, finished_at=f"{{now}} - interval '{age}'")
    assert run("workqueue_reap", "mail") == "mail: 5 deleted\n"
    assert held("mail")["mail"]["stalled"] == 2


# Autodiscovery


@pytest.fixture
def app(tmp_path, monkeypatch, settings) -> Callable[[str], None]:
    """`app(text)`: an installed app whose module `jobs_here`, which is looked for, has that text; None: has none."""

    def install(text: str | None) -> None:
        package = tmp_path / "app_of_the_test"
        package.mkdir()
        (package / "__init__.py").touch()
        if text is not None:
            (package / "jobs_here.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        settings.WORKQUEUE_AUTODISCOVER = "jobs_here"
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "app_of_the_test"]

    yield install
    for name in [name for name in sys.modules if name.startswith("app_of_the_test")]:
        del sys.modules[name]


def test_autodiscover_imports_the_module_of_each_app(app):
    app("from django_workqueue import Queue\nqueue = Queue('found by looking')")
    assert "found by looking" in held()


def test_autodiscover_does_without_a_module(app):
    app(None)
    discovery.autodiscover()
    assert "app_of_the_test.jobs_here" not in sys.modules


@pytest.mark.parametrize("text", ["import no_such_module_anywhere", "1 / 0"])
def test_autodiscover_raises_what_goes_wrong_inside_a_module(app, text):
    app(text)
    with pytest.raises((ImportError, ZeroDivisionError)) as raised:
        run("workqueue_stats")
    assert "jobs_here.py" in str(raised.traceback[-1].path)


def test_autodiscover_looks_for_nothing_if_told_so(settings):
    settings.WORKQUEUE_AUTODISCOVER = None
    discovery.autodiscover()


# How figures are written


@pytest.mark.parametrize(
    ("length", "written"),
    [
        (timedelta(0), "-"),
        (timedelta(seconds=-5), "-"),
        (timedelta(microseconds=900), "0 ms"),
        (timedelta(milliseconds=850), "850 ms"),
        (timedelta(seconds=1, milliseconds=999), "1 s"),
        (timedelta(seconds=59), "59 s"),
        (timedelta(seconds=60), "1 min"),
        (timedelta(minutes=3, seconds=5), "3 min 5 s"),
        (timedelta(hours=2, minutes=14, seconds=50), "2 h 14 min"),
        (timedelta(hours=2, seconds=50), "2 h"),
        (timedelta(days=3, hours=4, minutes=9), "3 d 4 h"),
        (timedelta(days=400), "400 d"),
    ],
)
def test_a_duration_is_written_in_two_units_at_most(length, written):
    assert duration(length) == written


@pytest.mark.parametrize(
    ("count", "exact_to", "written"),
    [
        (0, 10_000, "0"),
        (10_000, 10_000, "10,000"),
        (10_001, 10_000, "~10,000"),
        (1_234_567, 10_000, "~1,230,000"),
        (1_234_567, None, "1,234,567"),
    ],
)
def test_an_estimate_is_written_as_one(count, exact_to, written):
    assert number(count, exact_to=exact_to) == written


def test_columns_are_aligned():
    assert aligned(["name", "n"], [["a long name", "1"], ["b", "1,000"]], left=1) == [
        "name             n",
        "a long name      1",
        "b            1,000",
    ]
