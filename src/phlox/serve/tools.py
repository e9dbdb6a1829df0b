"""Calls of functions in the text of an answer: how families of models write them, and the grammar that forces one."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from phlox.models.generation.ends import first_of

MARKERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
"""What begins a call: of Hermes and Qwen; of Mistral; of Llama 3, which often leaves it out."""

_HERMES = re.compile(r"<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|$)", re.DOTALL)
_NAMED = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?(?=\{)")


class ToolCall(NamedTuple):
    """A call of a function."""

    name: str
    arguments: str
    """A JSON object."""

    def as_json(self) -> dict[str, Any]:
        """In OpenAI's form, with an id of its own."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


class ToolText:
    """Splits the text of an answer, as it is written, into what the user reads and calls of functions."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._held = ""
        """The text that may be, or is, part of a call."""
        self._is_start = True

    def add(self, piece: str) -> str:
        """The text that is no part of a call; all of it without functions."""
        if not self._names:
            return piece
        self._held += piece
        if self._is_start and (self._held.isspace() or self._held.lstrip().startswith("{")):
            return ""  # perhaps Llama's form, a JSON object alone
        begin = first_of(self._held, MARKERS)
        content, self._held = self._held[:begin], self._held[begin:]
        self._is_start = self._is_start and not content.strip()
        return content

    def end(self) -> tuple[str, list[ToolCall]]:
        """The rest of the text, and the calls. What cannot be read as a call is text."""
        calls = _calls_in(self._held, self._names)
        return ("", calls) if calls else (self._held, [])


def _calls_in(text: str, names: frozenset[str]) -> list[ToolCall]:
    text = text.strip()
    if text.startswith("<tool_call>"):
        objects = [value for part in _HERMES.findall(text) for value in _json_values(part)]
        return _calls_of(objects, None)
    if text.startswith("[TOOL_CALLS]"):
        text = text.removeprefix("[TOOL_CALLS]")
        if _NAMED.match(text) is None:
            return _calls_of(_json_values(text), None)
        calls: list[ToolCall] = []
        for part in text.split("[TOOL_CALLS]"):
            if (named := _NAMED.match(part)) is not None:
                objects = _json_values(part[named.end() :])[:1]
                calls += [ToolCall(named[1], json.dumps(arguments)) for arguments in objects]
        return calls
    return _calls_of(_json_values(text.removeprefix("<|python_tag|>")), names)


def _calls_of(objects: list[Any], names: frozenset[str] | None) -> list[ToolCall]:
    """Objects as calls; none at all if one of them is no call, or of a function that does not exist."""
    calls: list[ToolCall] = []
    for value in objects:
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        name, arguments = fields.get("name"), fields.get("arguments", fields.get("parameters", {}))
        if (
            not isinstance(name, str)
            or not isinstance(arguments, (dict, str))
            or (names is not None and name not in names)
        ):
            return []
        calls.append(ToolCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments)))
    return calls


def _json_values(text: str) -> list[Any]:
    """The JSON values of a text, separated by spaces or semicolons; a list counts as its elements."""
    values: list[Any] = []
    decoder = json.JSONDecoder()
    text = text.strip()
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            return []
        values += value if isinstance(value, list) else [value]
        text = text[end:].lstrip("; \n\r\t")
    return values


def call_schema(tools: Sequence[dict[str, Any]], arguments: str) -> dict[str, Any]:
    """The schema of a call of one of these functions; `arguments` is the key of the arguments."""
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool["function"]["name"]},
                    arguments: tool["function"].get("parameters") or {"type": "object"},
                },
                "required": ["name", arguments],
                "additionalProperties": False,
            }
            for tool in tools
        ]
    }


def form_of(template: str | None) -> tuple[str, str, str]:
    """The text before and after a call, and the key of its arguments, as a chat template writes them."""
    if template is not None and "<tool_call>" in template:
        return "<tool_call>\n", "\n</tool_call>", "arguments"
    is_llama = template is not None and '"parameters"' in template
    return "", "", "parameters" if is_llama else "arguments"
