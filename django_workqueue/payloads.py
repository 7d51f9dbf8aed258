"""Payloads and results: JSON, checked where it comes in, with the path to what is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

from .exceptions import InvalidPayload

JSON = Any  # what `json` and `DjangoJSONEncoder` take: dict, list, str, numbers, None, dates, UUID, Decimal

MAX_BYTES = 1_048_576
LIGHT = 4096  # characters: of such texts a statement takes a thousand
DEEPEST = 200  # levels: what the reader's stack, wherever it is called from, has room for

_encoder = DjangoJSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_decode = json.JSONDecoder().raw_decode  # what jsonb prints begins at once and ends with the value


def _kept(encoder: json.JSONEncoder) -> Callable[[JSON], str]:
    """The encoder's `encode`, without what that asks anew for each value: it costs more than a small payload does."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)  # not there, say, in PyPy
    if make is None:
        return encoder.encode
    how = (
        encoder.default,
        json.encoder.encode_basestring,
        encoder.indent,
        encoder.key_separator,
        encoder.item_separator,
        encoder.sort_keys,
        encoder.skipkeys,
        encoder.allow_nan,
    )
    # A dict for each value, of what it is inside of: left to the bound on recursion, what contains itself and a large
    # text besides is gigabytes by then.
    return lambda value: "".join(make({}, *how)(value, 0))


_encode = _kept(_encoder)


def dumps(value: JSON, *, name: str = "payload") -> str:
    """The value as JSON text that `jsonb` takes. Raises `InvalidPayload` naming the path, such as `payload.to[0]`."""
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidPayload(_explain(value, name) or f"{name} is not JSON: {error}") from error
    if "\\u0000" in text or not (text.isascii() or _encodable(text)) or _is_deep(value, text):
        fault = _explain(value, name)
        if fault is not None:
            raise InvalidPayload(fault)
    if len(text) * 4 > MAX_BYTES and (size := len(text.encode())) > MAX_BYTES:
        raise InvalidPayload(
            f"{name} is {size:,} bytes of JSON, over the {MAX_BYTES:,} allowed; "
            "store it elsewhere and enqueue a reference"
        )
    return text


def loads(text: str | None) -> JSON:
    """The value of stored JSON text."""
    return None if text is None else _decode(text)[0]


def weight(texts: Iterable[str]) -> int:
    """What each of the texts weighs, in light ones: a statement takes fewer of heavy ones, no more than some MB."""
    return max(map(len, texts), default=0) // LIGHT + 1


def _is_deep(value: Any, text: str) -> bool:
    """Whether it is nested too deep. Text with few brackets is not, and most is that."""
    if len(text) <= 2 * DEEPEST:
        return False
    return text.count("[") + text.count("{") > DEEPEST and _depth(value, DEEPEST + 1) > DEEPEST


def _depth(value: Any, most: int) -> int:
    """The levels of lists and dicts, no more than `most` of them."""
    if not most or not isinstance(value, (dict, list, tuple)):
        return 0
    parts = value.values() if isinstance(value, dict) else value
    return 1 + max((_depth(each, most - 1) for each in parts), default=0)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _explain(value: Any, path: str, above: tuple[int, ...] = ()) -> str | None:
    """What is wrong with the value, and where; None if nothing is."""
    if id(value) in above:
        return f"{path} contains itself, which JSON cannot"
    if len(above) >= DEEPEST and isinstance(value, (dict, list, tuple)):
        return f"{path:.60}… is nested more than {DEEPEST} deep"
    if isinstance(value, dict):
        return _explain_dict(value, path, (*above, id(value)))
    if isinstance(value, (list, tuple)):
        parts = (_explain(each, f"{path}[{place}]", (*above, id(value))) for place, each in enumerate(value))
        return next((fault for fault in parts if fault), None)
    return _explain_str(value, path) if isinstance(value, str) else _explain_other(value, path)


def _explain_other(value: Any, path: str) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path} is {value}, which JSON has no word for"
    try:
        _encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return f"{path} is a {type(value).__name__}, which is not JSON: {_shown(value)}"
    return None


def _explain_dict(value: dict[Any, Any], path: str, above: tuple[int, ...]) -> str | None:
    for key, each in value.items():
        if not isinstance(key, (str, int, float, bool, type(None))):
            return f"{path} has the key {_shown(key)}, a {type(key).__name__}; JSON's keys are strings"
        if isinstance(key, float) and not math.isfinite(key):
            return f"{path} has the key {key}, which JSON has no word for"
        if isinstance(key, str) and (fault := _explain_str(key, f"{path}'s key {key!r:.100}")):
            return fault
        if fault := _explain(each, f"{path}.{key}" if str(key).isidentifier() else f"{path}[{key!r}]", above):
            return fault
    return None


def _shown(value: object) -> str:
    try:
        return f"{value!r:.100}"
    except Exception as error:  # noqa: BLE001 - the user's own __repr__, or a number beyond all bounds
        return f"<{type(value).__name__} that cannot be shown: {error}>"


def _explain_str(value: str, path: str) -> str | None:
    if "\x00" in value:
        return f"{path} holds the character NUL, which PostgreSQL's jsonb does not take"
    if not _encodable(value):
        return f"{path} holds a lone surrogate, which is no character: {value!r:.100}"
    return None
