"""Keys: how a Python key becomes the text that the table stores, and what such a text may be.

Knows nothing of queues or SQL.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from .exceptions import EmptyKey, InvalidKey, KeyDecodeError, KeyHasControlCharacter, KeyTooLong, of_queue

K = TypeVar("K")

MAX_KEY_BYTES = 512
MAX_NAME_BYTES = 128
MAX_PRIORITY = 2**31 - 1
MIN_PRIORITY = -(2**31) + 2

_FORBIDDEN = re.compile("[\x00\n\r\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@runtime_checkable
class KeyCodec(Protocol[K]):
    """Turns keys into text and back. `decode(encode(key)) == key`, and equal keys encode equally."""

    def encode(self, key: K) -> str:
        """The key as text of 1 to 512 bytes without NUL, LF, CR or lone surrogates."""
        ...

    def decode(self, text: str) -> K:
        """The key that `text` stands for. Any exception marks the text as undecodable."""
        ...


class CheckedCodec(Generic[K]):
    """A codec with the limits enforced: what it encodes can be stored, and errors are ours, naming the queue."""

    def __init__(self, key: type[K] | KeyCodec[K], *, queue: str) -> None:
        self.key = key
        self.queue = queue
        codec = key if not isinstance(key, type) and isinstance(key, KeyCodec) else codec_for(typing.cast(Any, key))
        self._encode: Callable[[K], str] = codec.encode
        self._decode: Callable[[str], K] = codec.decode
        self.is_plain_text = key is str

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CheckedCodec):
            return NotImplemented
        return self.key == other.key or (
            not isinstance(self.key, type)
            and type(self.key) is type(other.key)
            and self.key.__getstate__() == other.key.__getstate__()  # attributes and slots
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.key)

    def encode(self, key: K) -> str:
        """The key's text. Raises `InvalidKey` or one of its children, naming queue and key."""
        try:
            text = self._encode(key)
            if not isinstance(text, str):
                raise InvalidKey(f"the codec encoded the key {key!r} to {text!r}, which is not a str")  # noqa: TRY301
            check_text(text, key)
        except InvalidKey as error:
            of_queue(error, self.queue)
            raise
        return text

    def decode(self, text: str) -> K:
        """The key of a stored text. Raises `KeyDecodeError` naming the text."""
        if self.is_plain_text:
            return typing.cast(K, text)
        try:
            return self._decode(text)
        except Exception as error:
            raise KeyDecodeError(f"the stored key {text!r} does not decode: {type(error).__name__}: {error}") from error

    def canonical(self, text: str) -> str:
        """The text that the key `text` stands for is stored as. Raises `KeyDecodeError`, or `InvalidKey`."""
        key = self.decode(text)
        try:
            return self.encode(key)
        except InvalidKey:
            raise
        except Exception as error:  # a codec that decodes what is none of its keys
            raise KeyDecodeError(f"the key {text!r} does not encode: {type(error).__name__}: {error}") from error


def _of_another_type(wanted: str, key: object) -> InvalidKey:
    several = isinstance(key, Iterable) and not isinstance(key, (str, bytes, tuple, Mapping))
    advice = ". Several keys are given one by one, as in enqueue(*keys)" if several else ""
    return InvalidKey(f"this queue's keys are {wanted}, not {type(key).__qualname__}: {key!r}{advice}")


def check_text(text: str, key: object) -> None:
    """Raise unless `text` can be stored as a key. `key` is what the caller gave, for the message."""
    if not text:
        raise EmptyKey(f"the key {key!r} encodes to the empty string; a key has 1 to {MAX_KEY_BYTES} bytes")
    if _FORBIDDEN.search(text):
        raise KeyHasControlCharacter(
            f"the key {key!r} holds NUL, a line break or a lone surrogate; strip it or use a KeyCodec that escapes it"
        )
    if len(text) * 4 > MAX_KEY_BYTES and (size := len(text.encode())) > MAX_KEY_BYTES:
        raise KeyTooLong(
            f"the key {text[:40]!r}… is {size} bytes long, over the {MAX_KEY_BYTES} allowed; "
            "enqueue a reference to it instead"
        )


def check_name(name: object) -> str:
    """The name of a queue, if it can be one. Raises `TypeError` or `ValueError` saying what was given."""
    if not isinstance(name, str):
        raise TypeError(f"a queue's name is a str, not {name!r}")
    if has_control_characters(name):
        raise ValueError(f"a queue's name holds no control characters: {name!r}")
    size = len(name.encode())
    if not 1 <= size <= MAX_NAME_BYTES:
        raise ValueError(f"a queue's name has 1 to {MAX_NAME_BYTES} bytes; {name[:40]!r} has {size}")
    return str.__str__(name)  # of an enum's member its value, whatever str() says


def has_control_characters(text: str) -> bool:
    """Whether the text holds control characters or lone surrogates."""
    return _CONTROL.search(text) is not None


def check_priority(priority: object) -> int:
    """The priority, if it is one. Raises `TypeError` or `ValueError` saying what was given."""
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise TypeError(f"priority is an int, not {priority!r}")
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise ValueError(f"priority lies between {MIN_PRIORITY} and {MAX_PRIORITY}; got {priority}")
    return int(priority)  # of an enum's member its value, whatever str() says


class _Scalar(Generic[K]):
    """A key stored as its plain text."""

    def __init__(self, key: type[K]) -> None:
        self.key = key
        self.value_of, self.make = _scalar(key)

    def encode(self, key: K) -> str:
        if not isinstance(key, self.key) or (isinstance(key, bool) and self.key is int):
            raise _of_another_type(self.key.__qualname__, key)
        value = self.value_of(key)
        try:
            return str(value)
        except ValueError as error:
            raise _too_many_digits(error) from error

    def decode(self, text: str) -> K:
        key: K = self.make(text)
        if str(self.value_of(key)) != text:
            raise ValueError(f"not the canonical text of a {self.key.__qualname__}")
        return key


class _Plain:
    """`str` keys, as they are."""

    def encode(self, key: str) -> str:
        if type(key) is not str:
            if not isinstance(key, str):
                raise _of_another_type("str", key)
            key = str.__str__(key) if not isinstance(key, enum.Enum) else str(key.value)
        return key

    def decode(self, text: str) -> str:
        return text


class _Record(Generic[K]):
    """A dataclass, named tuple or tuple: compact UTF-8 JSON, an array of the fields in declared order."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.origin: Any = typing.get_origin(key) or key
        self.variadic: Any = None
        self.names: list[str] | None
        if dataclasses.is_dataclass(key):
            fields = [field for field in dataclasses.fields(key) if field.init]
            hints = typing.get_type_hints(key)
            self.names = [field.name for field in fields]
            self.keyword_only = any(field.kw_only for field in fields)
            types = [hints[name] for name in self.names]
        elif hasattr(key, "_fields"):
            hints = typing.get_type_hints(key)
            self.names, self.keyword_only = list(key._fields), False
            types = [hints.get(name, str) for name in self.names]
        else:
            self.names, self.keyword_only = None, False
            types = list(typing.get_args(key))
            if len(types) == 2 and types[1] is Ellipsis:
                self.variadic, types = _field(types[0]), []
            elif not types:
                raise TypeError(f"key={key!r}: name the tuple's types, for example tuple[str, int]")
        self.fields = [_field(hint) for hint in types]

    def encode(self, key: K) -> str:
        if not self._is_one(key):
            raise _of_another_type(_name(self.key), key)
        parts = self.to_json(key)
        try:
            return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
        except ValueError as error:
            raise _too_many_digits(error) from error

    def decode(self, text: str) -> K:
        return self.from_json(json.loads(text))

    def to_json(self, key: Any) -> list[Any]:
        if not self._is_one(key):
            raise InvalidKey(f"expected {_name(self.key)} inside the key, got {type(key).__qualname__}: {key!r}")
        values = (
            [getattr(key, name) for name in self.names]
            if self.names is not None and not isinstance(key, tuple)
            else key
        )
        fields = [self.variadic] * len(values) if self.variadic else self.fields
        if len(values) != len(fields):
            raise InvalidKey(f"a key of {_name(self.key)} has {len(fields)} parts; {key!r} has {len(values)}")
        return [field.to_json(value) for field, value in zip(fields, values, strict=True)]

    def _is_one(self, key: object) -> bool:
        # A dataclass's child may have fields that would not be stored: two keys would become one.
        return type(key) is self.origin or (isinstance(key, self.origin) and isinstance(key, tuple))

    def from_json(self, values: Any) -> K:
        if not isinstance(values, list):
            raise ValueError("not a JSON array")  # noqa: TRY004 - of the text, not of its type
        fields = [self.variadic] * len(values) if self.variadic else self.fields
        parts = [field.from_json(value) for field, value in zip(fields, values, strict=True)]
        if self.names is None:
            return typing.cast(K, tuple(parts))
        if self.keyword_only:
            made: K = self.key(**dict(zip(self.names, parts, strict=True)))
            return made
        return typing.cast(K, self.key(*parts))


class _Value:
    """A scalar inside a record."""

    def __init__(self, key: type[Any]) -> None:
        self.key = key
        self.value_of, self.make = _scalar(key)

    def to_json(self, value: Any) -> Any:
        if not isinstance(value, self.key) or (isinstance(value, bool) and self.key is int):
            raise InvalidKey(
                f"expected {self.key.__qualname__} inside the key, got {type(value).__qualname__}: {value!r}"
            )
        return self.value_of(value)

    def from_json(self, value: Any) -> Any:
        if isinstance(value, bool) and self.key is not bool:
            raise ValueError(f"not a {self.key.__qualname__}: {value!r}")
        made = self.make(value)
        if self.value_of(made) != value:
            raise ValueError(f"not a {self.key.__qualname__}: {value!r}")
        return made


class _Optional:
    """`X | None` inside a record."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def to_json(self, value: Any) -> Any:
        return None if value is None else self.inner.to_json(value)

    def from_json(self, value: Any) -> Any:
        return None if value is None else self.inner.from_json(value)


def _name(key: Any) -> str:
    return getattr(key, "__qualname__", None) if isinstance(key, type) and not typing.get_args(key) else repr(key)  # type: ignore[return-value]


def _is_record(key: Any) -> bool:
    origin = typing.get_origin(key) or key
    return dataclasses.is_dataclass(origin) or (isinstance(origin, type) and issubclass(origin, tuple))


def _field(hint: Any) -> Any:
    if _is_record(hint):
        return _Record(hint)
    args = typing.get_args(hint)
    if type(None) in args and len(args) == 2:
        return _Optional(_field(args[0] if args[1] is type(None) else args[1]))
    return _Value(hint)


def _scalar(key: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """How a scalar becomes a str or int, and how it is made from one."""
    if isinstance(key, type):
        if issubclass(key, enum.Enum):
            by_value = {_plain(member.value, key): member for member in key}
            by_text = {str(value): member for value, member in by_value.items()}
            if len(by_text) < len(by_value):
                raise TypeError(f"key={key!r}: two members have the same text, so they would be one item: {list(key)}")
            return lambda member: _plain(
                member.value, key
            ), lambda value: by_value[value] if value in by_value else by_text[value]
        if issubclass(key, uuid.UUID):
            return str, key
        if key is bool:
            return bool, lambda value: {"True": True, "False": False}[str(value)]
        if issubclass(key, int):
            return int.__int__, key
        if issubclass(key, str):
            return str.__str__, key
    raise TypeError(
        f"key={key!r}: keys are str, int, UUID, enums, or dataclasses, named tuples and tuples of these; "
        "give a KeyCodec (encode, decode) for anything else"
    )


def _too_many_digits(error: ValueError) -> KeyTooLong:
    return KeyTooLong(f"the key holds an integer of too many digits, and {MAX_KEY_BYTES} bytes are allowed: {error}")


def _plain(value: Any, key: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, (str, int, uuid.UUID)):
        raise TypeError(f"key={key!r}: its members have values that are neither str, int nor UUID: {value!r}")
    return int(value) if isinstance(value, int) else str(value)


def codec_for(key: Any) -> KeyCodec[Any]:
    """The codec of a key type. Raises `TypeError` for a type that has none."""
    if key is str:
        return _Plain()
    if _is_record(key):
        return _Record(key)
    return _Scalar(key)
