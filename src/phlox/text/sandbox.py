"""The sandbox of chat templates: Jinja with what such templates use, and without access to objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any, ClassVar

from phlox.errors import ExtraNotInstalledError

LONGEST = 1 << 25
"""The largest number of characters that a template may write, or make by one multiplication."""
_LARGEST = 1000
"""The largest base and exponent of a power."""
MARK = "_mark_reply"
"""The variable with the function that a template calls with the assistant's text."""


@cache
def environment() -> Any:
    """The environment in which templates run, the same as in `transformers`; `ExtraNotInstalledError` without Jinja."""
    try:
        from jinja2 import nodes
        from jinja2.exceptions import SecurityError, TemplateError
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from jinja2.utils import Namespace
    except ImportError as error:
        raise ExtraNotInstalledError(
            f"chat templates need Jinja2: install Phlox with the extra 'text' ({error})"
        ) from None

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            """A product or a power; `SecurityError` if it is too large."""
            is_text = any(isinstance(side, (str, list, tuple)) for side in (left, right))
            left_size, right_size = _size(left), _size(right)
            if (is_text and left_size * right_size > LONGEST) or (
                operator == "**" and max(left_size, right_size) > _LARGEST
            ):
                raise SecurityError(f"the result of {operator} is too large")
            return super().call_binop(context, operator, left, right)

    class Generation(Extension):
        """`{% generation %}` ... `{% endgeneration %}`: the assistant's text."""

        tags: ClassVar[set[str]] = {"generation"}  # pyright: ignore[reportIncompatibleVariableOverride]

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_mark", [nodes.Name(MARK, "load")])
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _mark(self, mark: Callable[[str], None], caller: Callable[[], str]) -> str:
            text = caller()
            mark(text)
            return text

    class SafeNamespace(Namespace):
        """Refuses names that begin with an underscore."""

        def __init__(*args: Any, **names: Any) -> None:
            attributes = dict(*args[1:], **names)
            for name in attributes:
                check_name(name)
            Namespace.__init__(args[0], attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            check_name(name)
            super().__setitem__(name, value)

    def check_name(name: str) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no attribute {name!r}: it begins with an underscore")

    def refuse(message: str) -> None:
        raise TemplateError(message)

    made: Any = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = _to_json
    made.globals |= {
        "raise_exception": refuse, "strftime_now": _now, "dict": _make_dict, "namespace": SafeNamespace,
    }  # fmt: skip
    return made


def _size(value: Any) -> int:
    """The length of a text or a list, or the size of a number."""
    if isinstance(value, (str, list, tuple)):
        return len(value)  # pyright: ignore[reportUnknownArgumentType]
    return int(abs(value)) if isinstance(value, (int, float)) else 0


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _make_dict(*args: Any, **names: Any) -> dict[str, Any]:
    return dict(*args, **names)
