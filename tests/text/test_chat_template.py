"""Chats as text, against `apply_chat_template` of `transformers`; and templates that mean harm."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from phlox.errors import ConfigError, DataError
from phlox.text import BytePairTokenizer, ChatTemplate, Tokenizer, load_tokenizer
from tests.text.templates import CHATML, GEMMA, LLAMA, MARKED, MISTRAL

TEMPLATES = {"chatml": CHATML, "llama": LLAMA, "mistral": MISTRAL, "gemma": GEMMA, "marked": MARKED}
NAMES: dict[str, Any] = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Wie <ist> es?", "parameters": {"a": [1]}}}
CALL = {"id": "abcdefgh9", "function": {"name": "weather", "arguments": {"place": "Zürich & <more>", "days": 2}}}
SYSTEM, USER = {"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi 'you' <b> 你好\n"}
REPLY = {"role": "assistant", "content": " Hello! "}
CHATS: dict[str, dict[str, Any]] = {
    "user": {"messages": [USER]},
    "turns": {"messages": [USER, REPLY, USER, REPLY]},
    "system": {"messages": [SYSTEM, USER, {**REPLY, "tool_calls": None}]},
    "tools": {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]},
                           {"role": "tool", "content": "3.5", "tool_call_id": "abcdefgh9"}], "tools": [TOOL]},
    "wrong order": {"messages": [USER, USER]},
    "documents": {"messages": [USER], "documents": [{"title": "One", "text": "..."}], "enable_thinking": False},
}  # fmt: skip


@cache
def own(template: str | None) -> BytePairTokenizer:
    """A tokenizer with this template."""
    text = CHATML + "Be brief. Hello! Hi you" * 3
    base = BytePairTokenizer.train(text, 400, special=["<s>", "<|im_start|>", "<|im_end|>"], end="<|im_end|>")
    tokenizer = BytePairTokenizer(
        base.merges, special=["<s>", "<|im_start|>", "<|im_end|>"], end="<|im_end|>", chat_template=template
    )
    tokenizer.special_names = NAMES
    return tokenizer


@cache
def theirs(folder: Path, template: str) -> Any:
    """The same tokenizer in `transformers`."""
    from transformers import PreTrainedTokenizerFast

    own(template).save(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder, **NAMES)


@pytest.mark.parametrize("name", TEMPLATES)
def test_as_transformers(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    template = TEMPLATES[name]
    reference = theirs(tmp_path_factory.mktemp(name), template)
    for case, chat in CHATS.items():
        for reply in (False, True):
            expected: Any
            try:
                expected = reference.apply_chat_template(
                    chat["messages"], add_generation_prompt=reply, tokenize=False,
                    **{key: value for key, value in chat.items() if key != "messages"},
                )  # fmt: skip
            except Exception as error:
                with pytest.raises(DataError, match=r"the chat template refuses these messages") as caught:
                    own(template).render_chat(**chat, reply=reply)
                assert str(error) in str(caught.value), case
                continue
            assert own(template).render_chat(**chat, reply=reply) == expected, case
            tokens = reference(expected, add_special_tokens=False)["input_ids"]
            assert own(template).chat(**chat, reply=reply) == tokens, case


@pytest.mark.parametrize("name", ["chatml", "llama", "marked"])
def test_a_last_message_that_goes_on(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    reference = theirs(tmp_path_factory.mktemp(name), TEMPLATES[name])
    for last in ("Once upon", "Once upon "):
        messages = [USER, {"role": "assistant", "content": last}]
        expected = reference.apply_chat_template(messages, continue_final_message=True, tokenize=False)
        assert own(TEMPLATES[name]).render_chat(messages, continue_message=True) == expected
        assert expected.endswith(("Once upon", "Once upon "))


def test_masks_of_replies(tmp_path_factory: pytest.TempPathFactory) -> None:
    messages = [SYSTEM, USER, REPLY, USER, {"role": "assistant", "content": "你好 🙂 ok"}]
    marked, plain = own(MARKED), own(CHATML)
    reference = theirs(tmp_path_factory.mktemp("mask"), MARKED).apply_chat_template(
        messages, return_assistant_tokens_mask=True, return_dict=True
    )
    tokens, mask = marked.chat_mask(messages)
    assert tokens == reference["input_ids"] and mask == [bool(value) for value in reference["assistant_masks"]]
    assert marked.decode([t for t, is_reply in zip(tokens, mask, strict=True) if is_reply]) == " Hello! 你好 🙂 ok"

    tokens, mask = plain.chat_mask(messages)  # without marks, by what each message adds
    replied = [token for token, is_reply in zip(tokens, mask, strict=True) if is_reply]
    assert plain.decode(replied, special=True) == " Hello! <|im_end|>你好 🙂 ok<|im_end|>"

    forgetful = "{% for m in messages %}{{ m.content if loop.last else '...' }}{% endfor %}"
    with pytest.raises(DataError, match=r"message 2 of the assistant differently .* \{% generation %\}"):
        own(forgetful).chat_mask(messages)


def test_named_templates_and_none() -> None:
    tokenizer = own(CHATML)
    tokenizer.templates = {"default": "{{ messages[0].content }}", "tool_use": "tools: {{ tools|length }}", "x": "X"}
    try:
        assert tokenizer.render_chat([{"role": "user", "content": "Hi"}]) == "Hi"
        assert tokenizer.render_chat([USER], tools=[TOOL]) == "tools: 1"
        assert tokenizer.render_chat([USER], template="x") == "X"
        assert tokenizer.render_chat([USER], template="{{ eos_token }}!") == "<|im_end|>!"
    finally:
        tokenizer.templates = {"default": CHATML}
    with pytest.raises(ConfigError, match="has no chat template; give template=NAME"):
        BytePairTokenizer().chat([USER])
    with pytest.raises(NotImplementedError):
        Tokenizer().encode("")


def test_objects_are_seen_as_plain_data() -> None:
    @dataclass
    class Item:
        text: str
        secret: Any = open

    template = ChatTemplate("{{ messages[0].content.text }} {{ messages[0].content.secret }} {{ n + 1 }}")
    messages = [{"role": "user", "content": Item("a")}]
    assert template.render(messages, variables={"n": True})[0] == "a <builtin_function_or_method> 2"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{% for m in messages %}", "the chat template is wrong (line 1)"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ ''.__class__.__name__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ 'a' * 100000000 }}", "the result of * is too large"),
        ("{{ (messages * 100000000)|length }}", "the result of * is too large"),
        ("{{ 9 ** 99999999 }}", "the result of ** is too large"),
        ("{{ range(10000000)|list }}", "Range too big"),
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "writes more than 33,554,432 characters"),
        ("{% set n = namespace(a=1) %}{% set n.__class__ = 2 %}", "underscore"),
        ("{{ namespace(__init__=1) }}", "underscore"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)  # fmt: skip
def test_templates_that_mean_harm(source: str, sentence: str) -> None:
    with pytest.raises((DataError, ConfigError)) as caught:
        ChatTemplate(source).render([USER])
    assert sentence in str(caught.value)


@pytest.mark.parametrize("messages", ["Hi", {"role": "user"}, [], ["Hi"], [{"role": "user", "content": "a"}, 3]])
def test_wrong_messages(messages: Any) -> None:
    with pytest.raises(DataError, match=r"^chat: (messages|there are no messages)"):
        ChatTemplate("").render(messages)


def test_templates_of_a_folder(tmp_path: Path) -> None:
    own("{{ 'file' }}").save(tmp_path)
    assert load_tokenizer(tmp_path).chat_template == "{{ 'file' }}"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert load_tokenizer(tmp_path).render_chat([USER], tools=[TOOL]) == "tools"
