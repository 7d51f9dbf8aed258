"""What the dashboard remembers from one view to the next."""

import pytest

from django_workqueue import dashboard, inventory
from django_workqueue.dashboard import Memory
from django_workqueue.models import QueueRecord


@pytest.fixture
def looked_up(monkeypatch):
    """The names of the queues whose figures were looked up."""
    names, stats = [], inventory.KnownQueue.stats

    def spied(queue, **options):
        names.append(queue.name)
        return stats(queue, **options)

    monkeypatch.setattr(inventory.KnownQueue, "stats", spied)
    return names


@pytest.fixture
def hurried(monkeypatch):
    """No time to look up what is known already."""
    monkeypatch.setattr(dashboard, "BUDGET", 0.0)
    monkeypatch.setattr(dashboard, "KEPT", 3600.0)


def settle(*names):
    QueueRecord.objects.bulk_create([QueueRecord(name=name, face="items", settings={}) for name in names])


@pytest.mark.usefixtures("hurried")
def test_figures_are_remembered_of_however_many_queues(db, looked_up, monkeypatch):
    names = [f"queue {number}" for number in range(dashboard.CHARTS_MOST + 20)]
    settle(*names)
    dashboard.queue_views("default")
    assert set(names) <= set(looked_up)
    looked_up.clear()
    assert set(names) <= {view.name for view in dashboard.queue_views("default")}
    assert looked_up == []


@pytest.mark.usefixtures("hurried")
def test_figures_of_queues_that_are_gone_are_forgotten_when_all_are_looked_at(db, looked_up):
    settle("stays", "goes")
    dashboard.queue_views("default")
    dashboard.queue_views("default", ["stays"])
    assert dashboard._figures.recall(("default", "goes"), 3600.0) is not None
    QueueRecord.objects.filter(name="goes").delete()
    dashboard.queue_views("default")
    assert dashboard._figures.recall(("default", "goes"), 3600.0) is None
    assert dashboard._figures.recall(("default", "stays"), 3600.0) is not None


def test_of_too_many_things_the_oldest_is_forgotten():
    memory: Memory[int, str] = Memory(3)
    for number in range(5):
        memory.keep(number, "known")
    assert [number for number in range(5) if memory.recall(number, 3600.0)] == [2, 3, 4]
