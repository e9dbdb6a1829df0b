"""The fields of a request: taken one by one, with checks; what is left over is unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from phlox.other_names import remark
from phlox.serve.errors import ApiError


class Fields:
    """The fields of a JSON object. Each is taken once; `finish` refuses those that nobody has taken.

    A field that is null counts as left out.
    """

    def __init__(self, body: object) -> None:
        if not isinstance(body, dict):
            raise ApiError(400, f"the body must be a JSON object, got {_name(body)}")
        fields = cast("dict[str, Any]", body)
        self._body = {name: value for name, value in fields.items() if value is not None}
        self._names: set[str] = set()

    def take(self, name: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
        """The value of a field, which must be of one of these types of Python."""
        self._names.add(name)
        value = self._body.get(name)
        if value is None:
            return default
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = " or ".join(_KINDS[kind] for kind in kinds)
            raise ApiError(400, f"{name} must be {expected}, got {_name(value)}", param=name, code="invalid_type")
        return value

    def number(self, name: str, default: Any, least: float, most: float = math.inf) -> Any:
        """A number in a range."""
        return self._in_range(name, self.take(name, (int, float), default), least, most)

    def whole(self, name: str, default: Any, least: int, most: float = math.inf) -> Any:
        """A whole number in a range."""
        return self._in_range(name, self.take(name, int, default), least, most)

    def required(self, name: str, kinds: type | tuple[type, ...]) -> Any:
        """The value of a field that must be there."""
        value = self.take(name, kinds)
        if value is None:
            raise ApiError(400, f"{name} is missing", param=name, code="missing_required_parameter")
        return value

    def ignore(self, *names: str) -> None:
        """These fields do not change the answer."""
        self._names.update(names)

    def only(self, **values: tuple[Any, ...]) -> None:
        """These fields may have these values alone, which ask for nothing that is not done."""
        for name, allowed in values.items():
            self._names.add(name)
            if (value := self._body.get(name)) is not None and value not in allowed:
                raise ApiError(
                    400, f"{name}={value!r} is not supported; leave it out", param=name, code="unsupported_value"
                )

    def finish(self) -> None:
        """Refuse fields that nobody has taken: an answer would not be what they ask for."""
        for name in self._body:
            if name not in self._names:
                hint = remark(name, "field", sorted(self._names)) or "; leave it out"
                raise ApiError(400, f"there is no field {name!r}{hint}", param=name, code="unknown_parameter")

    def _in_range(self, name: str, value: Any, least: float, most: float) -> Any:
        if value is not None and not least <= value <= most:
            limits = f"from {least:g} to {most:g}" if most < math.inf else f"at least {least:g}"
            raise ApiError(400, f"{name} must be {limits}, got {value}", param=name, code="invalid_value")
        return value


def strings(name: str, value: Any, most: int) -> tuple[str, ...]:
    """A string or a list of strings, at most so many; none of them empty."""
    texts = [value] if isinstance(value, str) else value or []
    if not all(isinstance(text, str) and text for text in texts) or len(texts) > most:
        raise ApiError(400, f"{name} must be a text, or up to {most} texts, none of them empty", param=name)
    return tuple(texts)


def biases(value: Mapping[str, Any] | None, vocabulary: int) -> dict[int, float]:
    """The field logit_bias: the keys are tokens as texts, the values are from -100, which bans a token, to 100."""
    result: dict[int, float] = {}
    for key, bias in (value or {}).items():
        is_number = key.isascii() and key.isdecimal() and len(key) < 20
        is_token = is_number and int(key) < vocabulary
        if not is_token or isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -100 <= bias <= 100:
            raise ApiError(
                400,
                f"logit_bias must have tokens from 0 to {vocabulary - 1} as keys, and numbers from -100 to 100, "
                f"got {key!r}: {bias!r}",
                param="logit_bias",
            )
        result[int(key)] = float(bias)
    return result


_KINDS: dict[type, str] = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "an object",
}  # fmt: skip


def _name(value: object) -> str:
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)
