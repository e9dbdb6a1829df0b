"""The plain values of a record: None, bool, int, float, str, and lists and string-keyed dicts of them."""

from __future__ import annotations

import math
from typing import Any, TypeAlias, Union, cast

from phlox.errors import RecordError

Value: TypeAlias = Union[bool, int, float, str, "list[Value]", "dict[str, Value]", None]
"""A plain value of a record: the values of JSON."""

_MAX_DEPTH = 64
_INTS = range(-(2**63), 2**64)  # the range that every format supports


def checked_value(value: object, path: str, depth: int = 0) -> Value:
    """A copy of `value` in plain Python types; RecordError, naming `path`, if it is not a plain value."""
    if depth > _MAX_DEPTH:
        raise RecordError(f"{path}: a plain value nests at most {_MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if int(value) not in _INTS:
            raise RecordError(f"{path}: the int does not fit 64 bits; store it as a str, or as a list of smaller ints")
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return checked_text(value, path)
    if isinstance(value, list):
        return [checked_value(item, path, depth + 1) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {_checked_key(key, path): checked_value(item, path, depth + 1) for key, item in items}
    raise RecordError(
        f"{path}: a value of {type(value)} is not a plain value; "
        "a record holds None, bool, int, float, str, and lists and string-keyed dicts of them, besides tensors"
    )


def checked_text(text: str, path: str) -> str:
    """`text` as a plain str; RecordError if it is not valid Unicode (a lone surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RecordError(f"{path!r}: {text[:100]!r} holds a lone surrogate, which no file can hold") from None
    return str(text)


def to_json(value: Value) -> Any:
    """`value` as strict JSON: a float that is not finite becomes `{"$float": "nan"}`.

    To avoid ambiguity, a dict whose only key is "$float" or "$dict" becomes `{"$dict": {...}}`.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        items = {key: to_json(item) for key, item in value.items()}
        return {"$dict": items} if _is_tagged(items) else items
    return value


def from_json(data: Any) -> Any:
    """The inverse of `to_json`; RecordError for a tag that it never writes."""
    if isinstance(data, list):
        return [from_json(item) for item in cast("list[Any]", data)]
    if not isinstance(data, dict):
        return data
    items = cast("dict[str, Any]", data)
    if _is_tagged(items):
        ((tag, content),) = items.items()
        if tag == "$float" and content in ("nan", "inf", "-inf"):
            return float(content)
        if tag == "$dict" and isinstance(content, dict):
            return {key: from_json(item) for key, item in cast("dict[str, Any]", content).items()}
        raise RecordError(f"a value has the tag {tag!r} with invalid content")
    return {key: from_json(item) for key, item in items.items()}


def _checked_key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise RecordError(f"{path}: the key {key!r} of a dict is not a str")
    return checked_text(key, path)


def _is_tagged(items: dict[str, Any]) -> bool:
    return len(items) == 1 and ("$float" in items or "$dict" in items)
