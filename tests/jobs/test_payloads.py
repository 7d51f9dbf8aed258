"""What a payload or result may be, and how what may not is refused: by the path to it."""

import datetime as dt
import decimal
import json
import tracemalloc
import uuid
from typing import NamedTuple

import pytest
from django.contrib.auth.models import User
from django.utils.translation import gettext_lazy

from django_workqueue import InvalidPayload
from django_workqueue.payloads import DEEPEST, MAX_BYTES, dumps, loads


class Point(NamedTuple):
    x: int
    y: int


def nested(levels):
    value = "leaf"
    for _ in range(levels):
        value = [value]
    return value


def circular():
    value = {"steps": [1, 2]}
    value["steps"].append({"again": value})
    return value


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**70),
        1.5,
        "",
        'ünï ☃ \U0001f986 \\u0000 \\ " \n \t \x7f',
        [],
        {},
        [1, [2, {"a": [None, {"b": "c"}]}]],
        {"": 1, "a b": 2, "ünï": 3},
        nested(DEEPEST),
    ],
)
def test_json_comes_back_as_it_was(value):
    assert loads(dumps(value)) == value


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (dt.datetime(2030, 1, 2, 3, 4, 5, tzinfo=dt.UTC), "2030-01-02T03:04:05Z"),
        (dt.date(2030, 1, 2), "2030-01-02"),
        (dt.timedelta(minutes=1), "P0DT00H01M00S"),
        (decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (gettext_lazy("yes"), "yes"),
        ((1, 2), [1, 2]),
        (Point(1, 2), [1, 2]),
        ({1: "a", None: "b", False: "c"}, {"1": "a", "null": "b", "false": "c"}),
    ],
)
def test_what_djangos_encoder_takes_is_taken(value, stored):
    assert loads(dumps(value)) == stored


def test_it_is_stored_compactly_and_not_as_ascii():
    assert dumps({"a": ["ü", 1]}) == '{"a":["ü",1]}'


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, r"payload is a set, which is not JSON: \{1, 2\}"),
        ({"to": [{"cc": {1}}]}, r"payload\.to\[0\]\.cc is a set"),
        ([1, b"raw"], r"payload\[1\] is a bytes, which is not JSON: b'raw'"),
        ({"user": User(username="ada")}, r"payload\.user is a User, which is not JSON: <User: ada>"),
        ({"a": float("nan")}, r"payload\.a is nan, which JSON has no word for"),
        ({"a": [float("-inf")]}, r"payload\.a\[0\] is -inf, which JSON has no word for"),
        ({float("inf"): 1}, r"payload has the key inf, which JSON has no word for"),
        ({"call": len}, r"payload\.call is a builtin_function_or_method, which is not JSON"),
        ({(1, 2): 3}, r"payload has the key \(1, 2\), a tuple; JSON's keys are strings"),
        (circular(), r"payload\.steps\[2\]\.again contains itself"),
        ({"a": "x\x00y"}, r"payload\.a holds the character NUL"),
        ({"a\x00": 1}, r"payload's key 'a\\x00' holds the character NUL"),
        ({"a": "\ud800"}, r"payload\.a holds a lone surrogate, which is no character: '\\ud800'"),
        ({"two words": [{"\udfff": 1}]}, r"payload\['two words'\]\[0\]'s key '\\udfff' holds a lone surrogate"),
        ("x" * 2_000_000, r"payload is 2,000,002 bytes of JSON, over the 1,048,576 allowed"),
        ("ü" * 600_000, r"payload is 1,200,002 bytes of JSON"),
        (nested(DEEPEST + 1), r"^payload\[[\[\]0]+… is nested more than 200 deep"),
        (nested(100_000), r"is nested more than 200 deep"),
        ({"a": 10**5000}, r"payload\.a is a int, which is not JSON: <int that cannot be shown"),
        ({"a": Unshowable()}, r"payload\.a is a Unshowable, which is not JSON: <Unshowable that cannot be shown: no>"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_what_is_not_json_is_refused_by_its_path(value, message):
    with pytest.raises(InvalidPayload, match=message):
        dumps(value)


def test_a_result_is_called_so():
    with pytest.raises(InvalidPayload, match=r"^result\.a is a set"):
        dumps({"a": set()}, name="result")


def test_invalid_payload_is_a_value_error():
    with pytest.raises(ValueError, match="is a set"):
        dumps(set())


def test_an_escaped_nul_in_a_text_is_no_nul():
    assert loads(dumps("\\u0000")) == "\\u0000"


def test_the_largest_payload_is_a_mebibyte():
    assert len(dumps("x" * (MAX_BYTES - 2))) == MAX_BYTES
    with pytest.raises(InvalidPayload, match="over the 1,048,576 allowed"):
        dumps("x" * (MAX_BYTES - 1))


def test_many_shallow_lists_are_not_deep():
    value = [[{}] for _ in range(1000)]
    assert json.loads(dumps(value)) == value


def test_what_contains_itself_and_a_large_text_besides_is_refused_at_once():
    value = {"text": "x" * 100_000}
    value["again"] = value
    tracemalloc.start()
    try:
        with pytest.raises(InvalidPayload, match="contains itself"):
            dumps(value)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10_000_000
