"""Metrics for Prometheus: what a scrape says, what it costs, and that dashboard and alerts speak of what there is."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from django.core.management import CommandError, call_command
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_workqueue import histogram, metrics
from django_workqueue.models import QueueRecord
from django_workqueue.prometheus import MetricsServer, WorkqueueCollector
from django_workqueue.prometheus.totals import Totals
from django_workqueue.worker import Worker
from tests.interleave import wait_until
from tests.worker.conftest import shop  # noqa: F401 - a fixture

DOCS = Path(__file__).resolve().parents[2] / "docs" / "monitoring"


class Scraper:
    """A registry with a collector, and what a scrape of it says."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.registry.register(WorkqueueCollector("default"))

    def text(self):
        return generate_latest(self.registry).decode()

    def samples(self, queue=None, **labels):
        """The samples of a queue by name and labels other than database, queue, kind."""
        found = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                if queue is None or sample.labels.get("queue") == queue:
                    rest = {k: v for k, v in sample.labels.items() if k not in ("database", "queue", "kind")}
                    found[sample.name, *rest.values()] = sample.value
        return found


@pytest.fixture
def scraper(db):
    return Scraper()


def write(own):
    metrics.ledger("default").write(own)


def test_gauges_say_what_the_queue_holds(queue, scraper):
    queue.enqueue("a", "b", "c")
    queue.claim(1)
    queue.pause()
    found = scraper.samples(queue.name)
    assert found["workqueue_entries", "ready"] == 2
    assert found["workqueue_entries", "leased"] == 1
    assert found["workqueue_oldest_ready_age_seconds",] > 0
    assert found["workqueue_paused",] == 1
    assert scraper.samples()["workqueue_up",] == 1


def test_counters_and_durations_grow_by_what_was_done_since_the_first_scrape(queue, scraper, own):
    queue.handler(lambda item: time.sleep(0.01))
    queue.enqueue("before")
    Worker([queue]).drain()
    write(own)
    assert scraper.samples(queue.name)["workqueue_completed_total",] == 0
    queue.enqueue("a", "b")
    Worker([queue]).drain()
    write(own)
    for _ in range(2):  # looking again adds nothing
        found = scraper.samples(queue.name)
        assert found["workqueue_completed_total",] == found["workqueue_started_total",] == 2
        assert found["workqueue_run_seconds_count",] == found["workqueue_run_seconds_bucket", "+Inf"] == 2
        assert found["workqueue_run_seconds_sum",] >= 0.02
        assert found["workqueue_run_seconds_bucket", "0.0001"] == 0


def test_two_collectors_say_the_same_however_many_processes_did_the_work(queue, own):
    one, two = Scraper(), Scraper()
    for each in (one, two):
        each.text()
    for _ in range(3):
        ledger = metrics.Ledger("default")
        ledger.count(queue.name, completed=2)
        ledger.write(own)
    assert one.samples(queue.name)["workqueue_completed_total",] == 6
    assert two.samples(queue.name)["workqueue_completed_total",] == 6


def test_totals_go_on_when_minutes_change_and_old_ones_are_pruned():
    def row(minute, completed, run):
        return (minute, "q", "", 0, 0, completed, 0, 0, 0, 0, 0, 0, [], histogram.counted([run] * completed))

    totals = Totals()
    totals.add([row(0, 5, 200)])
    totals.add([row(0, 7, 200), row(60, 1, 200)])
    assert totals.since == 0
    totals.add([row(60, 3, 200), row(3600, 1, 200)])
    totals.add([row(3600, 2, 200)])
    total = totals.by_kind["q", ""]
    assert total.counters["completed"] == 2 + 3 + 2
    assert sum(total.run) == 7
    assert totals.since == 3540


def test_a_database_that_does_not_answer_is_told_and_nothing_is_raised(scraper, monkeypatch, caplog):
    from django.db import OperationalError

    from django_workqueue import inventory

    def broken(**_):
        raise OperationalError("gone")

    monkeypatch.setattr(inventory, "queues", broken)
    assert scraper.samples()["workqueue_up",] == 0
    scraper.text()
    assert [record.message for record in caplog.records] == ["The metrics cannot be collected: gone"]


def test_the_server_answers_stops_and_goes_on(db):
    server = MetricsServer(0, address="127.0.0.1", collector=WorkqueueCollector("default"))
    url = f"http://127.0.0.1:{server.port}/metrics"
    try:
        for _ in range(2):
            server.start()
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain")
                assert b"workqueue_up 1.0" in answer.read()
            assert server.stop(10)
    finally:
        server.stop(10)
        server.close()


def test_a_worker_serves_metrics_of_what_its_processes_do(shop, goods):  # noqa: F811
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = shop.start("shop-sync", "--metrics-port", f"127.0.0.1:{port}", "--processes", "2")

    def scraped():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return answer.read().decode()
        except OSError:
            return None

    assert "workqueue_up 1.0" in wait_until(scraped, deadline=30)
    goods.enqueue("kill-1-a")
    shop.wait_for("started", "kill-1-a")
    assert "workqueue_up 1.0" in wait_until(scraped, deadline=30)  # forked again, and on it goes
    goods.enqueue("quick-1-b")
    wait_until(lambda: re.search(r'workqueue_completed_total\{.*"shop-sync"\} 1', scraped() or ""), deadline=40)
    process.terminate()
    assert process.communicate(timeout=30)[0].count(f"metrics are served at http://127.0.0.1:{port}/metrics") == 1
    assert process.wait(30) == 0


def test_gauges_are_kept_fresh_between_scrapes(queue, monkeypatch):
    from django_workqueue.prometheus import server as serving

    monkeypatch.setattr(serving, "FRESH", 0.05)
    monkeypatch.setattr(serving, "SHARE", 0)
    monkeypatch.setattr(serving._Server, "timeout", 0.001)
    QueueRecord.objects.exclude(name=queue.name).delete()
    collector = WorkqueueCollector("default")
    server = MetricsServer(0, address="127.0.0.1", collector=collector)
    queue.enqueue("a")
    key = ("default", queue.name)

    def scrape():
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            return answer.read().decode()

    try:
        server.start()
        scrape()
        first = collector._stats[key]
        queue.enqueue("b")
        wait_until(lambda: collector._stats[key][0].ready == 2)
        assert collector._stats[key][1] > first[1]
        assert re.search(rf'workqueue_entries{{.*{queue.name}",state="ready"}} 2.0', scrape())
    finally:
        assert server.stop(10)
        server.close()


def test_a_port_in_use_is_told_in_a_sentence(db):
    server = MetricsServer(0, address="127.0.0.1")
    try:
        with pytest.raises(CommandError, match="cannot be served on port"):
            call_command("workqueue_work", "--metrics-port", f"127.0.0.1:{server.port}")
    finally:
        server.close()


@pytest.fixture
def goods(shop, make_queue):  # noqa: F811
    return make_queue("shop-sync")


# Dashboard and alerts


def exported(scraper, queue, own):
    """Every name of a sample that a collector has."""
    metrics.ledger("default").count(queue.name, completed=1, waits=[1], runs=[1])
    write(own)
    return {name for name, *_ in scraper.samples()}


def named(expression):
    """The names of metrics in a PromQL expression."""
    return set(re.findall(r"workqueue_\w+", expression))


def test_the_dashboard_is_json_and_names_only_metrics_that_there_are(queue, scraper, own):
    queue.enqueue("a")
    board = json.loads((DOCS / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    expressions += [each["definition"] for each in board["templating"]["list"] if "definition" in each]
    names = set().union(*map(named, expressions))
    assert len(names) > 12
    assert names <= exported(scraper, queue, own)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_alerts_are_yaml_and_name_only_metrics_that_there_are(queue, scraper, own):
    queue.enqueue("a")
    (group,) = yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"]
    names = set().union(*(named(rule["expr"]) for rule in group["rules"]))
    assert len(names) > 5
    assert names <= exported(scraper, queue, own)
    assert all({"alert", "expr", "labels", "annotations"} <= rule.keys() for rule in group["rules"])
    assert all(rule["labels"]["severity"] in ("critical", "warning", "info") for rule in group["rules"])


def test_without_the_extra_nothing_of_it_is_imported_and_the_command_says_what_to_install():
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("prometheus_client", "opentelemetry"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import django, os
os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
os.environ.setdefault("DATABASE_URL", "postgresql://nobody@localhost/nothing")
django.setup()
import importlib, pkgutil, django_workqueue
for module in pkgutil.walk_packages(django_workqueue.__path__, "django_workqueue."):
    if module.name.split(".")[1] not in ("prometheus", "otel", "backend"):
        importlib.import_module(module.name)
from django.core.management import call_command
from django.core.management.base import CommandError
try:
    call_command("workqueue_work", "--metrics-port", "0")
except CommandError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "--metrics-port needs an extra: pip install 'django-workqueue[prometheus]'"
