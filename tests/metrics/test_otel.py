"""OpenTelemetry: spans of enqueue, claim and run, and the context that a job carries from the first to the last."""

import threading
from datetime import timedelta

import pytest
from django.db import transaction
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from django_workqueue import PermanentError, Retry, otel
from django_workqueue.models import WorkJob
from django_workqueue.worker import Worker


class Traced:
    """What was exported, and a tracer of the test's own."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("the test")

    def spans(self, start):
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(start)]


@pytest.fixture
def traced():
    traced = Traced()
    otel.instrument(traced.provider)
    yield traced
    otel.uninstrument()


def test_a_job_is_one_trace_from_the_request_over_the_enqueue_to_the_run(make_jobs, traced):
    jobs = make_jobs()
    seen = []
    jobs.handler("kind")(lambda job: seen.append(trace.get_current_span().get_span_context()))
    with traced.tracer.start_as_current_span("request") as request:
        number = jobs.enqueue("kind", {"a": 1})
    Worker([jobs]).drain()
    (enqueue,), (claim,), (run,) = (traced.spans(verb) for verb in ("enqueue", "claim", "run"))
    assert enqueue.parent == request.get_span_context()
    for context in (run.parent, run.links[0].context, claim.links[0].context):
        assert (context.trace_id, context.span_id) == (enqueue.context.trace_id, enqueue.context.span_id)
    assert len(run.links) == len(claim.links) == 1
    assert claim.parent is None
    assert claim.context.trace_id != enqueue.context.trace_id
    assert seen == [run.context]
    assert (enqueue.kind, claim.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER)
    for span, operation in ((enqueue, "send"), (claim, "receive"), (run, "process")):
        assert span.attributes["messaging.system"] == "django_workqueue"
        assert span.attributes["messaging.operation.type"] == operation
        assert span.attributes["messaging.destination.name"] == jobs.name
        assert span.start_time <= span.end_time
    assert enqueue.attributes["messaging.message.id"] == run.attributes["messaging.message.id"] == str(number)
    assert run.attributes["workqueue.attempt"] == 1
    assert run.status.status_code is StatusCode.UNSET


def test_a_key_carries_nothing_so_its_run_begins_a_trace_without_links(queue, traced):
    queue.handler(lambda item: None)
    queue.enqueue("a", "b")
    Worker([queue]).drain()
    (enqueue,) = traced.spans("enqueue")
    assert enqueue.attributes["messaging.batch.message_count"] == 2
    runs = traced.spans("run")
    assert len(runs) == 2
    assert all(run.parent is None and not run.links for run in runs)


def test_a_run_that_fails_is_an_error_and_one_that_snoozes_is_not(make_jobs, traced):
    jobs = make_jobs()

    @jobs.handler("bad")
    def bad(job):
        raise PermanentError("no good")

    @jobs.handler("later")
    def later(job):
        raise Retry(timedelta(hours=1))

    jobs.enqueue("bad")
    jobs.enqueue("later")
    Worker([jobs]).drain()
    runs = {span.attributes["workqueue.job.kind"]: span for span in traced.spans("run")}
    assert runs["bad"].status.status_code is StatusCode.ERROR
    assert runs["bad"].attributes["error.type"].endswith("PermanentError")
    assert [event.name for event in runs["bad"].events] == ["exception"]
    assert runs["later"].status.status_code is StatusCode.UNSET
    assert runs["later"].attributes["workqueue.snoozed"] is True


async def enqueue_async(jobs):
    await jobs.aenqueue("kind")


def test_async_handlers_and_enqueues_in_transactions_and_coroutines_are_traced(make_jobs, traced):
    from asgiref.sync import async_to_sync

    jobs = make_jobs()
    seen = []

    @jobs.handler("kind")
    async def work(job):
        seen.append(trace.get_current_span().get_span_context())

    async_to_sync(enqueue_async)(jobs)
    with transaction.atomic():
        jobs.enqueue("kind")
    Worker([jobs]).drain()
    enqueues, runs = traced.spans("enqueue"), traced.spans("run")
    assert {run.parent.span_id for run in runs} == {enqueue.context.span_id for enqueue in enqueues}
    assert len(runs) == 2
    assert {context.span_id for context in seen} == {run.context.span_id for run in runs}


def test_a_batch_is_one_span(queue, traced):
    queue.batch_handler(lambda items: None)
    queue.enqueue("a", "b", "c")
    Worker([queue]).drain()
    counts = [run.attributes["messaging.batch.message_count"] for run in traced.spans("run")]
    assert sum(counts) == 3


def test_a_context_that_is_not_one_is_ignored(make_jobs, traced):
    jobs = make_jobs()
    jobs.handler("kind")(lambda job: None)
    jobs.enqueue("kind")
    WorkJob.objects.filter(queue=jobs.name).update(metadata={"trace": {"traceparent": "nonsense"}})
    Worker([jobs]).drain()
    (run,) = traced.spans("run")
    assert run.parent is None
    assert not run.links


def test_idle_workers_make_no_spans(queue, traced, working):
    done = threading.Event()
    queue.handler(lambda item: done.set())
    worker = working(queue, poll=0.02)
    queue.enqueue("a")
    assert done.wait(10)
    worker.stop()
    assert len(traced.spans("claim")) == 1


def test_nothing_is_carried_or_traced_without_instrument(make_jobs):
    jobs = make_jobs()
    number = jobs.enqueue("kind")
    assert jobs.get(number).metadata == {}
