"""`phlox chat`: replies to a pipe, and a conversation in a terminal."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import phlox as px
from phlox.cli import chat, main
from phlox.interop import huggingface
from phlox.models import BertConfig, EncoderDecoderConfig, LanguageModel, LlamaConfig
from phlox.text import BytePairTokenizer

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model with a chat template, and one without."""
    made: dict[str, Path] = {}
    for name, template in (("chat", TEMPLATE), ("base", None)):
        made[name] = tmp_path_factory.mktemp(name)
        config = LlamaConfig(vocabulary=256, context=64, n_layers=1, d_model=16, n_heads=2, d_hidden=16)
        huggingface.save(config.init("numpy").init(seed=0), made[name], config={"eos_token_id": None})
        BytePairTokenizer(chat_template=template).save(made[name])
    return made


class Terminal:
    """What a user types, line by line; an exception stands for a key."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines = iter(lines)

    def __call__(self, prompt: str) -> str:
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", Terminal(*lines))


@pytest.mark.parametrize("kind", ["chat", "base"])
def test_a_pipe_gets_only_the_reply(
    kind: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n"))
    assert main(["chat", str(folders[kind]), "--temperature", "0", "--max-tokens", "5", "--system", "S."]) == 0
    model = px.models.load(folders[kind], device="numpy")
    prompt = "<system>S.<user>hi<a>" if kind == "chat" else "S.hi"
    note = "(the reply was cut off after 5 tokens; --max-tokens allows more)\n" if kind == "chat" else ""
    assert capsys.readouterr() == (model.generate(prompt, 5, temperature=0.0) + "\n", note)


def test_a_conversation(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts: list[str] = []

    def replied(model: Any, tokens: Any, limit: int, **options: Any) -> Iterator[Any]:
        prompts.append(model.tokenizer.decode(tokens))
        if prompts[-1].endswith("stop<a>"):
            yield SimpleNamespace(text="half", reason=None)
            raise KeyboardInterrupt
        yield SimpleNamespace(text=f"r{len(prompts)}\x1b", reason="length" if len(prompts) == 3 else "stop")

    monkeypatch.setattr(LanguageModel, "stream_tokens", replied)
    file = tmp_path / "talk.json"
    typed(
        monkeypatch, "one", KeyboardInterrupt, "", "two", f"/save {file}", "/clear", "/system Be.", "three", "stop",
        "four", f"/load {file}", "five", "/help", "/nope", "/save", "/load /no/file", "x" * 70, "six", "/quit", "never",
    )  # fmt: skip
    assert main(["chat", str(folders["chat"]), "--max-tokens", "4"]) == 0
    assert prompts == [
        "<user>one<a>", "<user>one<assistant>r1\x1b<user>two<a>", "<system>Be.<user>three<a>",
        "<system>Be.<user>three<assistant>r3\x1b<user>stop<a>",
        "<system>Be.<user>stop<assistant>half<user>four<a>",
        "<user>one<assistant>r1\x1b<user>two<assistant>r2\x1b<user>five<a>",
        "<user>two<assistant>r2\x1b<user>five<assistant>r6\x1b<user>six<a>",
    ]  # fmt: skip
    out, err = capsys.readouterr()
    assert "r1\\x1b\n" in out and "half [stopped]\n" in out and "(loaded 4 messages)" in out and "/clear" in out
    assert "(forgot 4 messages)" in out and "(instructions from the next message on)" in out
    assert "(/no/file: there is no such file; check the path)" in err
    assert [message["role"] for message in json.loads(file.read_text())] == ["user", "assistant"] * 2
    for sentence in (
        "the oldest 2 messages are left out: the context is full", "there is no command /nope", "/save needs the name",
        "the message has 79 tokens, too many for the context of 64",
    ):  # fmt: skip
        assert sentence in err
    assert "never" not in prompts[-1] and err.count("the reply was cut off after 4 tokens; --max-tokens allows") == 1


def test_a_base_model_continues_the_text(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "once", "upon" * 10)
    assert main(["chat", str(folders["base"]), "--seed", "3", "--max-tokens", "3", "--top-p", "0.9"]) == 0
    out, err = capsys.readouterr()
    assert "It has no chat template, so it continues your text." in out and "only the end of the text is used" in err


def test_files_that_are_no_conversation(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[3]")
    options = chat_options()
    talk = chat.Conversation(px.models.load(folders["chat"], device="numpy"), options)
    with pytest.raises(px.errors.DataError, match="is not a conversation"):
        talk.command("/load", str(tmp_path / "bad.json"))


def chat_options() -> Any:
    import argparse

    return argparse.Namespace(max_tokens=None, temperature=None, top_p=None, system=None)


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(tmp_path / "none")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    sizes: Any = {"context": 8, "n_layers": 1, "d_model": 8, "n_heads": 2}
    t5: Any = {"n_layers": 1, "d_model": 8, "n_heads": 2, "context": 1 << 20, "source_context": 1 << 20}
    cases: list[tuple[Any, Any, str]] = [
        (LlamaConfig(vocabulary=8, **sizes), None, "has no tokenizer, and texts need one; add tokenizer.json"),
        (LlamaConfig(vocabulary=100, **sizes), BytePairTokenizer(), "has 256 tokens, but the model only 100"),
        (BertConfig(vocabulary=270, **sizes), BytePairTokenizer(), "the model is Bert, which generates no text"),
        (EncoderDecoderConfig(vocabulary=270, **t5), BytePairTokenizer(), "EncoderDecoder, which answers single texts"),
    ]
    for number, (config, tokenizer, sentence) in enumerate(cases):
        LanguageModel(config.init("numpy"), tokenizer).save(tmp_path / str(number))
        assert main(["chat", str(tmp_path / str(number))]) == 2
        assert sentence in capsys.readouterr().err
    for option, sentence in (
        ("--temperature", "chat: temperature must be finite"),
        ("--top-p", "chat: top_p is a prob"),
    ):
        assert main(["chat", str(tmp_path / "0"), option, "-1"]) == 2
        assert sentence in capsys.readouterr().err
    special = BytePairTokenizer(special=["<s>"])  # a special token that the model never sees is no reason
    LanguageModel(LlamaConfig(vocabulary=256, **sizes).init("numpy"), special).save(tmp_path / "special")
    monkeypatch.setattr(sys, "stdin", io.StringIO("a"))
    assert main(["chat", str(tmp_path / "special"), "--max-tokens", "2"]) == 0
