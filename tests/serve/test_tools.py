"""Calls of functions in texts, as families of models write them, in pieces of any size."""

from __future__ import annotations

import json

import pytest

from phlox.serve.tools import ToolText, form_of

CASES = {
    "hermes": (
        '''I look.
<tool_call>
{"name": "add", "arguments": {"a": 1}}
</tool_call>
<tool_call>{"name": "sub", "arguments": {"a": {"b": 2}}}</tool_call>''',
        "I look.\n",
        [("add", {"a": 1}), ("sub", {"a": {"b": 2}})],
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "sub", "arguments": {}}]',
        "",
        [("add", {"a": 1}), ("sub", {})],
    ),
    "mistral by name": (
        'Yes.[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]sub{"b": 2}',
        "Yes.",
        [("add", {"a": 1}), ("sub", {"b": 2})],
    ),
    "llama": ('{"name": "add", "parameters": {"a": 1}}', "", [("add", {"a": 1})]),
    "llama with a tag": ('<|python_tag|>{"name": "add", "parameters": {}}; {"name": "sub", "parameters": {}}', "",
                         [("add", {}), ("sub", {})]),
    "another function": ('{"name": "mul", "parameters": {}}', '{"name": "mul", "parameters": {}}', []),
    "JSON that is no call": ('{"a": 1}', '{"a": 1}', []),
    "broken": ('<tool_call>{"name": "add", </tool_call>', '<tool_call>{"name": "add", </tool_call>', []),
    "text": ("a < b <tool", "a < b <tool", []),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_calls_are_split_from_the_text(case: tuple[str, str, list[tuple[str, object]]], size: int) -> None:
    text, content, calls = case
    tools = ToolText(["add", "sub"])
    pieces = [tools.add(text[i : i + size]) for i in range(0, len(text), size)]
    rest, found = tools.end()
    assert "".join(pieces) + rest == content
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls
    assert len({call.as_json()["id"] for call in found}) == len(found)


def test_text_that_is_no_call_is_not_held_back() -> None:
    tools = ToolText(["add"])
    assert [tools.add(piece) for piece in ("The ", "answer <", "b>", " is")] == ["The ", "answer ", "<b>", " is"]


def test_the_form_of_a_family() -> None:
    assert form_of("... <tool_call> ...")[2] == "arguments"
    assert form_of('{"name": ..., "parameters": ...}') == ("", "", "parameters")
    assert form_of(None) == ("", "", "arguments")


def test_without_functions_all_is_text() -> None:
    tools = ToolText(())
    assert tools.add('<tool_call>{"name": "add"') == '<tool_call>{"name": "add"' and tools.end() == ("", [])
