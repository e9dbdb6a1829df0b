"""Requests of OpenAI's protocol: from JSON to requests of the batcher, with everything checked."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from phlox.errors import ConfigError, DataError, ExtraNotInstalledError, RangeError
from phlox.models.generation.grammar import Grammar, fixed_spaces
from phlox.serve.errors import ApiError
from phlox.serve.fields import Fields, biases, strings
from phlox.serve.request import Request
from phlox.serve.steps import ALTERNATIVES
from phlox.serve.tools import call_schema, form_of

if TYPE_CHECKING:
    from phlox.text import Tokenizer

MOST_ANSWERS = 128
"""The largest n, as OpenAI's protocol has it."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request of the protocol: the requests of the batcher for it, and how they are answered."""

    is_chat: bool
    requests: list[Request]
    """For each prompt, n of them."""
    n: int
    stops: tuple[str, ...]
    streams: bool
    streams_usage: bool
    tools: tuple[str, ...]
    """The names of the functions that may be called."""
    calls_many: bool
    echoes: tuple[str, ...]
    """The texts that each answer begins with, by prompt: the prompt, if that is asked for."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """Reads requests for one model."""

    tokenizer: Tokenizer
    vocabulary: int
    """The number of tokens of the model."""
    context: int
    """The largest number of tokens of a text."""
    stops: frozenset[int]
    """The tokens that end a text."""
    defaults: dict[str, Any]
    """Options of generation that the model recommends, such as `{"temperature": 0.6}`."""
    most_tokens: int
    """The largest number of new tokens that a request may ask for."""
    timeout: float | None
    """The largest number of seconds that an answer may take."""

    def chat(self, fields: Fields) -> Job:
        """A request to /v1/chat/completions."""
        if self.tokenizer.chat_template is None:
            raise ApiError(400, "this model has no chat template; use /v1/completions", code="no_chat_template")
        messages = self._messages(fields.required("messages", list))
        tools, forced = self._tools(fields)
        most = fields.whole("max_completion_tokens", None, 1)
        most = fields.whole("max_tokens", None, 1) if most is None else most
        fields.ignore("max_tokens")
        wants_logprobs = fields.take("logprobs", bool, False)
        alternatives = fields.whole("top_logprobs", None, 0, ALTERNATIVES)
        if alternatives is not None and not wants_logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        grammar = self._response_format(fields.take("response_format", dict))
        if grammar is not None and forced:
            raise ApiError(400, "response_format and a forced tool_choice exclude each other", param="tool_choice")
        if forced:
            before, after, key = form_of(self.tokenizer.chat_template)
            grammar = self._grammar(call_schema(forced, key), "tools", before, after)
        variables = fields.take("chat_template_kwargs", dict, {})
        calls_many = fields.take("parallel_tool_calls", bool, True)
        fields.only(modalities=(["text"],), audio=(), functions=(), function_call=())
        try:
            prompt = self.tokenizer.chat(messages, tools=tools or None, **variables)
        except (ConfigError, DataError, TypeError) as error:
            raise ApiError(400, str(error), param="messages") from None
        options = self._options(fields, alternatives=(alternatives or 0) if wants_logprobs else None)
        job = self._job(fields, [prompt], most, options, grammar, is_chat=True)
        names = tuple(tool["function"]["name"] for tool in tools)
        return replace(job, tools=names, calls_many=calls_many)

    def completion(self, fields: Fields) -> Job:
        """A request to /v1/completions."""
        prompts = self._prompts(fields.required("prompt", (str, list)))
        most = fields.whole("max_tokens", 16, 1)
        alternatives = fields.whole("logprobs", None, 0, ALTERNATIVES)
        echo = fields.take("echo", bool, False)
        if echo and alternatives is not None:
            raise ApiError(400, "echo with logprobs is not supported; leave one of them out", param="echo")
        fields.only(suffix=(), best_of=(1,))
        grammar = self._response_format(fields.take("response_format", dict))
        job = self._job(fields, prompts, most, self._options(fields, alternatives=alternatives), grammar, is_chat=False)
        return replace(job, echoes=tuple(map(self.tokenizer.decode, prompts)) if echo else ())

    def _job(
        self,
        fields: Fields,
        prompts: list[list[int]],
        most: int | None,
        options: dict[str, Any],
        grammar: Grammar | None,
        *,
        is_chat: bool,
    ) -> Job:
        n = fields.whole("n", 1, 1, MOST_ANSWERS)
        seed = fields.whole("seed", None, -(2**63), 2**63 - 1)
        stops = strings("stop", fields.take("stop", (str, list)), 16)
        tokens = fields.take("stop_token_ids", list, [])
        if not self._are_tokens(tokens):
            raise ApiError(
                400, f"stop_token_ids must be tokens from 0 to {self.vocabulary - 1}", param="stop_token_ids"
            )
        ends = frozenset(tokens) if fields.take("ignore_eos", bool, False) else self.stops | frozenset(tokens)
        streams = fields.take("stream", bool, False)
        streaming = Fields(fields.take("stream_options", dict, {}))
        streams_usage = streaming.take("include_usage", bool, False)
        streaming.ignore("include_obfuscation")
        streaming.finish()
        if not streams and streams_usage:
            raise ApiError(400, "stream_options needs stream: true", param="stream_options")
        fields.ignore("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
        fields.finish()
        requests: list[Request] = []
        for number, prompt in enumerate(prompt for prompt in prompts for _ in range(n)):
            requests.append(
                Request(
                    prompt,
                    self._room(prompt, most),
                    seed=None if seed is None else (seed + number) % 2**63,
                    stop=ends,
                    grammar=None if grammar is None else grammar.matcher(self.tokenizer, self.vocabulary, self.stops),
                    timeout=self.timeout,
                    **options,
                )
            )
        return Job(is_chat, requests, n, stops, streams, streams_usage, (), True, ())

    def _room(self, prompt: list[int], most: int | None) -> int:
        """The number of new tokens."""
        room = self.context - len(prompt)
        if most is not None and most > self.most_tokens:
            raise ApiError(400, f"this server writes at most {self.most_tokens} tokens, got {most}", param="max_tokens")
        if room < (most or 1):
            asked = "" if most is None else f", and {most} new ones are asked for"
            raise ApiError(
                400,
                f"the context of this model is {self.context} tokens; the prompt has {len(prompt)}{asked}; shorten the "
                "prompt, or ask for fewer tokens",
                param="messages",
                code="context_length_exceeded",
            )
        return min(room, self.most_tokens) if most is None else most

    def _options(self, fields: Fields, *, alternatives: int | None) -> dict[str, Any]:
        """The options of generation; those that are left out are what the model recommends."""
        own = self.defaults
        return {
            "temperature": float(fields.number("temperature", own.get("temperature", 1.0), 0.0, 100.0)),
            "top_p": fields.number("top_p", own.get("top_p"), 1e-9, 1.0),
            "top_k": max(fields.whole("top_k", own.get("top_k") or 0, -1), 0) or None,
            "min_p": fields.number("min_p", own.get("min_p"), 0.0, 1.0),
            "repetition_penalty": float(
                fields.number("repetition_penalty", own.get("repetition_penalty", 1.0), 1e-3, 1e3)
            ),
            "presence_penalty": float(fields.number("presence_penalty", 0.0, -2.0, 2.0)),
            "frequency_penalty": float(fields.number("frequency_penalty", 0.0, -2.0, 2.0)),
            "logit_bias": biases(fields.take("logit_bias", dict), self.vocabulary),
            "logprobs": alternatives,
        }

    def _prompts(self, prompt: str | list[Any]) -> list[list[int]]:
        """A text, several texts, tokens, or several lists of tokens."""
        if isinstance(prompt, list) and prompt and not any(isinstance(row, (str, list)) for row in prompt):
            prompt = [prompt]
        rows = [prompt] if isinstance(prompt, str) else prompt
        if not rows or len(rows) > MOST_ANSWERS:
            raise ApiError(400, f"prompt must have 1 to {MOST_ANSWERS} texts, got {len(rows)}", param="prompt")
        return [self.tokens(row, "prompt") for row in rows]

    def tokens(self, text: Any, param: str) -> list[int]:
        """A text as tokens, or tokens, checked."""
        tokens: list[Any] = self.tokenizer.encode(text) if isinstance(text, str) else text
        if not isinstance(text, (str, list)) or not self._are_tokens(tokens):
            raise ApiError(
                400, f"{param} must be a text, texts, or tokens from 0 to {self.vocabulary - 1}", param=param
            )
        if not tokens:
            raise ApiError(400, f"{param} is empty; give at least one token", param=param)
        return tokens

    def _are_tokens(self, tokens: list[Any]) -> bool:
        return all(type(token) is int and 0 <= token < self.vocabulary for token in tokens)

    def _messages(self, messages: list[Any]) -> list[dict[str, Any]]:
        """Messages for the chat template: parts of a text joined, arguments of calls as objects."""
        if not messages:
            raise ApiError(400, "messages is empty; give at least one message", param="messages")
        result: list[dict[str, Any]] = []
        for number, message in enumerate(messages):
            name, fields = f"messages[{number}]", _object(message)
            if not isinstance(fields.get("role"), str):
                raise ApiError(400, f"{name} must be an object with a role and content", param=name)
            fields["content"] = _content(f"{name}.content", fields.get("content"))
            if calls := fields.pop("tool_calls", None):
                fields["tool_calls"] = _calls(f"{name}.tool_calls", calls)
            result.append(fields)
        return result

    def _tools(self, fields: Fields) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The functions that the model is told about, and those of which it must call one."""
        tools: list[Any] = fields.take("tools", list, [])
        for number, tool in enumerate(tools):
            name = _object(_object(tool).get("function")).get("name")
            if not isinstance(name, str) or tool.get("type") != "function":
                raise ApiError(
                    400, f'tools[{number}] must be {{"type": "function", "function": {{"name": ...}}}}', param="tools"
                )
        choice = fields.take("tool_choice", (str, dict), "auto" if tools else "none")
        if choice == "none":
            return [], []
        if choice == "auto":
            return tools, []
        if choice == "required" and tools:
            return tools, tools
        name = _object(_object(choice).get("function")).get("name")
        named = [tool for tool in tools if tool["function"]["name"] == name]
        if not named:
            raise ApiError(
                400, 'tool_choice must be "none", "auto", "required" or a function of tools', param="tool_choice"
            )
        return tools, named

    def _response_format(self, response_format: dict[str, Any] | None) -> Grammar | None:
        kind = "text" if response_format is None else response_format.get("type")
        if response_format is None or kind == "text":
            return None
        if kind == "json_object":
            return self._grammar({"type": "object"}, "response_format")
        schema = _object(response_format.get("json_schema")).get("schema")
        if kind != "json_schema" or not isinstance(schema, dict):
            raise ApiError(
                400,
                'response_format must be of type "text", "json_object" or "json_schema" with json_schema.schema',
                param="response_format",
            )
        return self._grammar(cast("dict[str, Any]", schema), "response_format")

    def _grammar(self, schema: dict[str, Any], param: str, before: str = "", after: str = "") -> Grammar:
        """The grammar of JSON that fits a schema, between two fixed texts."""
        begin, content, end = json.dumps(before), fixed_spaces(schema), json.dumps(after)
        grammar = Grammar.lark(f"start: {begin} content {end}\ncontent: %json {content}\n")
        try:
            grammar.matcher(self.tokenizer, self.vocabulary, self.stops)
        except (RangeError, ExtraNotInstalledError) as error:
            raise ApiError(400, f"the JSON schema cannot be followed: {error}", param=param) from None
        return grammar


def _object(value: object) -> dict[str, Any]:
    """A copy of an object of JSON; empty if it is something else."""
    return dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else {}


def _content(name: str, content: Any) -> str | None:
    """The text of a message."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{name} must be a text or a list of parts", param=name)
    parts = [_object(part) for part in cast("list[object]", content)]
    for part in parts:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ApiError(400, f"{name}: only parts of type text are supported, got {part.get('type')!r}", param=name)
    return "".join(part["text"] for part in parts)


def _calls(name: str, calls: Any) -> list[dict[str, Any]]:
    """The calls of a message, with their arguments as objects, as chat templates want them."""
    result: list[dict[str, Any]] = []
    for value in cast("list[object]", calls) if isinstance(calls, list) else [None]:
        call = _object(value)
        function = _object(call.get("function"))
        if not isinstance(function.get("name"), str):
            raise ApiError(400, f"{name} must be a list of calls of functions", param=name)
        if isinstance(arguments := function.get("arguments", {}), str):
            try:
                function["arguments"] = json.loads(arguments)
            except (ValueError, RecursionError):
                raise ApiError(400, f"{name}: the arguments of {function['name']} are no JSON", param=name) from None
        result.append({**call, "function": function})
    return result
