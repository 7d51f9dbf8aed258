"""Keys: what they may be, how they are stored, and that they come back as they were."""

import dataclasses
import enum
import json
import uuid
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_workqueue import EmptyKey, InvalidKey, KeyDecodeError, KeyHasControlCharacter, KeyTooLong, Queue
from django_workqueue.keys import CheckedCodec


class Name(str):
    """A string with a type of its own."""

    __slots__ = ()


class ProductId(int):
    """A number with a type of its own."""


class Layer(enum.Enum):
    ROADS = "roads"
    WATER = "wäter"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Colour(enum.StrEnum):
    RED = "red"


class Site(enum.Enum):
    HERE = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


@dataclasses.dataclass(frozen=True)
class TileKey:
    layer: str
    zoom: int
    x: int
    y: int


@dataclasses.dataclass(frozen=True)
class Nested:
    tile: TileKey
    layer: Layer
    site: uuid.UUID
    note: str | None = None
    final: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worded:
    b: str
    a: int


class Point(NamedTuple):
    x: int
    y: int


SITE = uuid.UUID("12345678-1234-5678-1234-567812345678")
TILE = TileKey("Straße", 3, 5, -7)

STORED = [
    (str, "tile/3/5", "tile/3/5"),
    (str, "100 % \\ '\"\t{Q} ünï☃ 🦆", "100 % \\ '\"\t{Q} ünï☃ 🦆"),
    (str, Name("n"), "n"),
    (str, Colour.RED, "red"),
    (Name, Name("n"), "n"),
    (int, 0, "0"),
    (int, -12345678901234567890, "-12345678901234567890"),
    (int, Level.HIGH, "10"),
    (ProductId, ProductId(42), "42"),
    (uuid.UUID, SITE, "12345678-1234-5678-1234-567812345678"),
    (Layer, Layer.WATER, "wäter"),
    (Level, Level.HIGH, "10"),
    (Colour, Colour.RED, "red"),
    (Site, Site.HERE, "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    (TileKey, TILE, '["Straße",3,5,-7]'),
    (Worded, Worded(a=1, b="x"), '["x",1]'),
    (Point, Point(3, 4), "[3,4]"),
    (tuple[str, int], ("a", 1), '["a",1]'),
    (tuple[int, ...], (1, 2, 3), "[1,2,3]"),
    (tuple[Point, Level], (Point(1, 2), Level.LOW), "[[1,2],1]"),
    (
        Nested,
        Nested(TILE, Layer.ROADS, SITE),
        '[["Straße",3,5,-7],"roads","12345678-1234-5678-1234-567812345678",null,false]',
    ),
    (
        Nested,
        Nested(TILE, Layer.ROADS, SITE, "line\nbreak", final=True),
        '[["Straße",3,5,-7],"roads","12345678-1234-5678-1234-567812345678","line\\nbreak",true]',
    ),
]


@pytest.mark.parametrize(("key", "value", "text"), STORED)
def test_a_key_is_stored_as_text_that_a_person_can_read_and_comes_back_as_it_was(
    make_queue, connect, name, key, value, text
):
    queue = make_queue(key=key)
    queue.enqueue(value)
    stored = connect().execute("SELECT key FROM workqueue_item WHERE queue = %s", [name]).fetchall()
    assert stored == [(text,)]
    (item,) = queue.claim()
    assert item.key == value
    assert type(item.key) is (key if isinstance(key, type) else tuple)
    assert queue.complete(item.key) == 1


def test_records_are_compact_json_with_the_fields_in_declared_order():
    text = CheckedCodec(TileKey, queue="tiles").encode(TILE)
    assert json.loads(text) == ["Straße", 3, 5, -7]
    assert " " not in text
    assert "ß" in text


KEYS = {
    str: st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\n\r"), min_size=1, max_size=100),
    int: st.integers(-(10**400), 10**400),
    uuid.UUID: st.uuids(),
    Layer: st.sampled_from(Layer),
    Level: st.sampled_from(Level),
    TileKey: st.builds(
        TileKey,
        st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
        st.integers(),
        st.integers(),
        st.integers(),
    ),
    Point: st.builds(Point, st.integers(), st.integers()),
    tuple[str, int]: st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.integers()),
    Nested: st.builds(
        Nested,
        st.builds(TileKey, st.text("aé\n\x00", max_size=9), st.integers(), st.integers(), st.integers()),
        st.sampled_from(Layer),
        st.uuids(),
        st.none() | st.text("xyz", max_size=5),
        st.booleans(),
    ),
}


@given(st.data())
def test_whatever_is_encoded_decodes_to_the_same_key_and_no_two_keys_share_a_text(data):
    kind = data.draw(st.sampled_from(list(KEYS)))
    codec = CheckedCodec(kind, queue="any")
    one, other = data.draw(KEYS[kind]), data.draw(KEYS[kind])
    assert codec.decode(codec.encode(one)) == one
    assert (codec.encode(one) == codec.encode(other)) == (one == other)


@given(st.lists(KEYS[str], unique=True, max_size=8))
@example(["a", "B", "ä", "z", "Z", "é", "\ufffd", "\U00010000", "\uffff"])
def test_python_sorts_keys_as_their_utf8_bytes_which_is_the_databases_order(keys):
    assert sorted(keys) == sorted(keys, key=lambda key: key.encode())


def test_the_database_sorts_keys_as_python_does(queue, table):
    keys = ["a", "B", "ä", "z", "Z", "é", "\ufffd", "\U00010000", "\uffff", "10", "9", "_", "~", "\x7f", "\x01"]
    queue.enqueue(*keys)
    assert table.stored() == sorted(keys)
    assert [item.key for item in queue.claim()] == sorted(keys)


# Limits


@pytest.mark.parametrize("key", ["x" * 512, "é" * 256, "🦆" * 128])
def test_a_key_of_512_bytes_is_taken(queue, key):
    queue.enqueue(key)
    assert [item.key for item in queue.claim()] == [key]


@pytest.mark.parametrize("key", ["x" * 513, "é" * 257, "🦆" * 129, "x" * 100_000])
def test_a_key_of_more_than_512_bytes_is_refused_with_its_size(queue, table, key):
    with pytest.raises(KeyTooLong, match=rf"{len(key.encode())} bytes.*512"):
        queue.enqueue("good", key)
    assert table.stored() == []


FORBIDDEN = ["\x00", "\n", "\r", "\ud800", "\udfff"]


@pytest.mark.parametrize("character", FORBIDDEN, ids=ascii)
@pytest.mark.parametrize("place", ["{}x", "x{}x", "x{}"])
def test_a_key_with_nul_a_line_break_or_a_lone_surrogate_is_refused(queue, table, character, place):
    with pytest.raises(KeyHasControlCharacter):
        queue.enqueue("good", place.format(character))
    assert table.stored() == []


@pytest.mark.parametrize("character", ["\t", "\x01", "\x7f", "\x85", "\u2028", "\u202e"])
def test_other_control_characters_are_nobodys_business(queue, character):
    queue.enqueue(f"x{character}x")
    assert [item.key for item in queue.claim()] == [f"x{character}x"]


def test_a_record_with_a_lone_surrogate_inside_is_refused(make_queue):
    with pytest.raises(KeyHasControlCharacter):
        make_queue(key=TileKey).enqueue(TileKey("\ud800", 1, 2, 3))


def test_an_empty_key_is_refused(queue):
    with pytest.raises(EmptyKey, match="''"):
        queue.enqueue("")


def test_an_integer_too_long_to_print_is_refused_as_a_key(make_queue, table):
    queue = make_queue(key=int)
    with pytest.raises(InvalidKey):
        queue.enqueue(10**5000)
    assert table.stored() == []


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (str, 5, "str.*int: 5"),
        (str, None, "str.*NoneType: None"),
        (str, b"x", "str.*bytes"),
        (int, "5", "int.*str: '5'"),
        (int, True, "int.*bool: True"),
        (int, 5.0, "int.*float: 5.0"),
        (uuid.UUID, str(SITE), "UUID.*str"),
        (Layer, "roads", "Layer.*str: 'roads'"),
        (TileKey, ("a", 1, 2, 3), r"TileKey.*tuple"),
        (TileKey, TileKey("a", "1", 2, 3), "expected int inside the key, got str: '1'"),
        (TileKey, TileKey("a", True, 2, 3), "expected int inside the key, got bool: True"),
        (TileKey, TileKey(None, 1, 2, 3), "expected str inside the key, got NoneType"),
        (tuple[str, int], ("a", 1, 2), "2 parts.*3"),
        (tuple[str, int], ["a", 1], "list"),
        (Point, (1, 2), "Point.*tuple"),
        (Nested, Nested(("a", 1, 2, 3), Layer.ROADS, SITE), "TileKey.*tuple"),
        (tuple[Point, int], ((1, 2), 3), "Point.*tuple"),
        (tuple[tuple[str, str], int], ("ab", 3), "tuple.*str"),
    ],
)
def test_a_key_of_another_type_is_refused_saying_what_was_given(make_queue, table, key, value, says):
    queue = make_queue(key=key)
    with pytest.raises(InvalidKey, match=f"^queue {queue.name!r}: .*{says}"):
        queue.enqueue(value)
    assert table.stored() == []


def test_a_key_of_a_subclass_that_says_more_is_refused_for_it_would_come_back_as_less(make_queue):
    @dataclasses.dataclass(frozen=True)
    class Retina(TileKey):
        scale: int = 2

    with pytest.raises(InvalidKey, match=r"TileKey.*Retina"):
        make_queue(key=TileKey).enqueue(Retina("a", 1, 2, 3))


@pytest.mark.parametrize("key", [float, bytes, list, dict, object, tuple, list[str], str | int, 5, "str", None])
def test_a_key_type_that_has_no_codec_is_refused_when_the_queue_is_made(name, key):
    with pytest.raises(TypeError, match="key="):
        Queue(name, key=key)


def test_a_record_with_a_field_that_has_no_codec_is_refused_when_the_queue_is_made(name):
    @dataclasses.dataclass(frozen=True)
    class Priced:
        price: float

    with pytest.raises(TypeError, match="float"):
        Queue(name, key=Priced)


def test_an_enum_of_values_that_have_no_codec_is_refused_when_the_queue_is_made(name):
    class Ratio(enum.Enum):
        HALF = 0.5

    with pytest.raises(TypeError, match=r"0\.5"):
        Queue(name, key=Ratio)


def test_an_enum_with_two_members_of_one_text_is_refused_for_they_would_be_one_item(name):
    class Twins(enum.Enum):
        NUMBER = 1
        TEXT = "1"

    with pytest.raises(TypeError, match="1"):
        Queue(name, key=Twins)


@pytest.mark.parametrize("value", [True, False])
def test_booleans_come_back_as_they_were(make_queue, value):
    queue = make_queue(key=bool)
    queue.enqueue(value)
    assert [item.key for item in queue.claim()] == [value]


# Codecs of one's own


class Hexed:
    """Keys are bytes."""

    def encode(self, key):
        return key.hex()

    def decode(self, text):
        return bytes.fromhex(text)


def test_a_codec_turns_any_key_into_text_and_back(make_queue, table):
    queue = make_queue(key=Hexed())
    queue.enqueue(b"\x00\xff")
    assert table.stored() == ["00ff"]
    (item,) = queue.claim()
    assert item.key == b"\x00\xff"
    assert queue.complete(b"\x00\xff") == 1


@pytest.mark.parametrize(
    ("text", "error"), [("", EmptyKey), ("x" * 513, KeyTooLong), ("a\nb", KeyHasControlCharacter), (5, InvalidKey)]
)
def test_what_a_codec_returns_is_held_to_the_same_limits(make_queue, table, text, error):
    class Odd:
        def encode(self, key):
            return text

        def decode(self, text):
            return text

    queue = make_queue(key=Odd())
    with pytest.raises(error):
        queue.enqueue("a")
    assert table.stored() == []


def test_a_codec_that_fails_fails_its_caller_alone(make_queue, table):
    queue = make_queue(key=Hexed())
    with pytest.raises(AttributeError):
        queue.enqueue(b"ok", "no hex")
    assert table.stored() == []


# What does not decode


@pytest.mark.parametrize(
    ("key", "good", "spoilt"),
    [
        (int, 5, "five"),
        (int, 5, "05"),
        (int, 5, " 5"),
        (uuid.UUID, SITE, "no uuid"),
        (uuid.UUID, SITE, "{12345678-1234-5678-1234-567812345678}"),
        (Layer, Layer.ROADS, "rails"),
        (TileKey, TILE, "{}"),
        (TileKey, TILE, '["a",1,2]'),
        (TileKey, TILE, '["a",1,2,3,4]'),
        (TileKey, TILE, '["a","1",2,3]'),
        (TileKey, TILE, '["a",true,2,3]'),
        (TileKey, TILE, "not json"),
        (tuple[str, int], ("a", 1), '{"a": 1}'),
        (Hexed(), b"\x00", "xyz"),
    ],
)
def test_a_stored_key_that_will_not_decode_is_released_with_its_error_and_a_backoff_and_logged(
    make_queue, table, caplog, key, good, spoilt
):
    queue = make_queue(key=key)
    queue.enqueue(good)
    stored = table.stored()[0]
    table.spoil(stored, spoilt)
    queue.enqueue(good)
    (item,) = queue.claim()
    assert item.key == good
    row = table.row(spoilt)
    assert table.state(spoilt) == "waiting"
    assert row.last_error.startswith("KeyDecodeError: ")
    assert spoilt in row.last_error
    assert 1 < row.due_in < 3
    assert row.attempts == 1
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert queue.name in record.getMessage()
    assert repr(spoilt) in record.getMessage()


def test_an_undecodable_key_backs_off_further_each_time_and_stalls_when_out_of_attempts(make_queue, table):
    queue = make_queue(key=int, max_attempts=2)
    queue.enqueue(1)
    table.spoil("1", "one")
    assert queue.claim() == []
    first = table.row("one").due_in
    table.age("one")
    assert queue.claim() == []
    assert table.state("one") == "stalled"
    assert first > 0


def test_an_undecodable_key_is_delivered_once_the_codec_understands_it(make_queue, table, name):
    queue = make_queue(key=int)
    queue.enqueue(1)
    table.spoil("1", "one")
    assert queue.claim() == []
    table.age("one")
    queue.close()
    with pytest.raises(ValueError, match="key"):
        Queue(name)
    assert KeyDecodeError.__doc__


# Refusals of names


@pytest.mark.parametrize("name", ["a", "ü" * 64, "x" * 128, "100% {Q} '\" \\ ; DROP TABLE", " spaced "])
def test_a_queues_name_is_free_text(make_queue, name):
    queue = make_queue(name=name)
    queue.enqueue("a")
    (item,) = queue.claim()
    assert item.queue == name
    assert queue.complete(item) == 1


@pytest.mark.parametrize("name", ["", "x" * 129, "ü" * 65])
def test_a_queues_name_has_1_to_128_bytes(name):
    with pytest.raises(ValueError, match=rf"1 to 128 bytes.*{len(name.encode())}"):
        Queue(name)


@pytest.mark.parametrize("name", ["a\nb", "\x00", "a\tb", "\x7f", "a\x85", "\ud800"])
def test_a_queues_name_holds_no_control_characters(name):
    with pytest.raises(ValueError, match="control characters"):
        Queue(name)


@pytest.mark.parametrize("name", [None, 5, b"x"])
def test_a_queues_name_is_text(name):
    with pytest.raises(TypeError, match="str"):
        Queue(name)
