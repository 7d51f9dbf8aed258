"""What is public, by name."""

import django_workqueue as public

EXCEPTIONS = {
    "WorkqueueError": Exception,
    "InvalidKey": public.WorkqueueError,
    "EmptyKey": public.InvalidKey,
    "KeyTooLong": public.InvalidKey,
    "KeyHasControlCharacter": public.InvalidKey,
    "KeyDecodeError": public.WorkqueueError,
    "InvalidPayload": public.WorkqueueError,
    "PayloadTooLarge": public.WorkqueueError,
    "QueueClosed": public.WorkqueueError,
    "EnqueueTimeout": public.WorkqueueError,
    "UnsupportedDatabase": public.WorkqueueError,
    "HandlerTimeout": public.WorkqueueError,
}
QUEUES = {"Queue", "Entry", "Item", "QueueStats", "KeyCodec", "JobQueue", "Job", "JobStatus"}
SAID_BY_HANDLERS = {"PermanentError", "Retry", "PartialFailure"}
OTHERS = {"publish", "Subscriber", "Worker", "exponential"}


def test_all_is_exactly_what_is_documented():
    assert set(public.__all__) == QUEUES | SAID_BY_HANDLERS | OTHERS | set(EXCEPTIONS)
    assert sorted(public.__all__) == list(public.__all__)
    for name in public.__all__:
        assert getattr(public, name).__doc__, name


def test_exceptions_are_of_one_family():
    for name, above in EXCEPTIONS.items():
        assert issubclass(getattr(public, name), above), name
    assert issubclass(public.EnqueueTimeout, TimeoutError)
    assert issubclass(public.HandlerTimeout, TimeoutError)
    for wrong in (public.InvalidKey, public.InvalidPayload, public.PayloadTooLarge):
        assert issubclass(wrong, ValueError)
