"""OpenAI request bodies into what the engine takes. What cannot be honoured is refused by name, never ignored."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from replay.engine.defects import NO_DEFECTS, Defects
from replay.engine.request import NO_FLAGS, InternalFlags, SamplingParams
from replay.openai_wire import CHAT, COMPLETIONS, ApiError, invalid
from replay.serving.fields import Fields, as_number, as_text, wrong_type

MAX_CHOICES = 16
MAX_PROMPTS = 64
MAX_MESSAGES = 2048
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_TOKENS = 256
MAX_LOGIT_BIAS = 1024
MAX_MAX_TOKENS = 2**31 - 1
"""Far above any context, with which an answer ends at the latest: nothing is allocated by this number."""
MAX_TOKEN_IDS = 2**31
"""Ids from here on have no place in a dump, whatever is checked."""
COMPLETION_MAX_TOKENS = 16
"""What /v1/completions generates when the client names no limit, as in the OpenAI API."""

Message = dict[str, str]

_ROLES = ("system", "developer", "user", "assistant")
_SAMPLING = frozenset(field.name for field in fields(SamplingParams))
_COMMON = _SAMPLING | {"model", "n", "stream", "stream_options", "return_token_ids"}
_KNOWN = {CHAT: _COMMON | {"messages", "max_completion_tokens"}, COMPLETIONS: _COMMON | {"prompt"}}

# Parameters that say who asks or how to bill and cache. They do not change an answer, so taking them is not a lie.
_WITHOUT_EFFECT = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})

# Parameters that are not supported, with the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request, checked. ``messages`` for chat, else ``prompts``, each text or token ids; ``flags`` come from
    a header. ``return_token_ids`` (a parameter of vLLM's) gives the ids of the answer with its text."""

    endpoint: str
    model: str
    messages: tuple[Message, ...] = ()
    prompts: tuple[str | tuple[int, ...], ...] = ()
    n: int
    stream: bool
    include_usage: bool
    return_token_ids: bool = False
    sampling: SamplingParams
    flags: InternalFlags = NO_FLAGS

    @property
    def chat(self) -> bool:
        return self.endpoint == CHAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """``text`` is what the tokens were made from, None where the client sent ids."""

    tokens: Sequence[int]
    text: str | None


def parse_call(
    endpoint: str,
    body: Mapping[str, Any],
    *,
    vocab_size: int,
    flags: InternalFlags = NO_FLAGS,
    defects: Defects = NO_DEFECTS,
) -> Call:
    """Read a body for one of the two endpoints.

    A request without a seed gets a random one here, so that whatever happens to it can be drawn again. The defect
    ``token_ids_unchecked`` takes ids beyond the vocabulary in sampling parameters.

    Raises:
        ApiError: 400 that names the parameter.
    """
    _refuse_unsupported(endpoint, body)
    given = Fields(body)
    chat = endpoint == CHAT
    stream = given.boolean("stream")
    call = Call(
        endpoint=endpoint,
        model=given.string("model"),
        messages=_messages(body) if chat else (),
        prompts=() if chat else _prompts(body, vocab_size),
        n=_choices(given),
        stream=stream,
        include_usage=_include_usage(given, stream),
        return_token_ids=given.boolean("return_token_ids"),
        sampling=_sampling(given, chat),
        flags=flags,
    )
    problem = call.sampling.problem(MAX_TOKEN_IDS if defects.token_ids_unchecked else vocab_size)
    if problem is not None:
        raise invalid(f"Invalid '{problem[0]}': {problem[1]}.", problem[0], "invalid_value")
    return call


def _refuse_unsupported(endpoint: str, body: Mapping[str, Any]) -> None:
    known = _KNOWN[endpoint] | _WITHOUT_EFFECT
    for name, value in body.items():
        if name in known or value is None:
            continue
        neutral = _NEUTRAL.get(name)
        if neutral is None:
            # The name is the client's own text; it goes back as printable ASCII and not at full length.
            raise invalid(f"Unrecognized request argument supplied: {name[:64]!a}", name[:64], "unknown_parameter")
        if not any(type(value) is type(harmless) and value == harmless for harmless in neutral):
            raise invalid(f"'{name}' is not supported by this server.", name, "unsupported_parameter")


def _choices(given: Fields) -> int:
    n = given.integer("n", 1)
    if not 1 <= n <= MAX_CHOICES:
        raise invalid(f"Invalid 'n': must be between 1 and {MAX_CHOICES}, got {n}.", "n", "invalid_value")
    return n


def _include_usage(given: Fields, stream: bool) -> bool:
    options = given.mapping("stream_options")
    if not options:
        return False
    if not stream:
        raise invalid("'stream_options' is only allowed with 'stream': true.", "stream_options", "invalid_value")
    for name in options:
        if name not in ("include_usage", "include_obfuscation"):
            raise invalid(f"Unrecognized stream option: {name[:64]!a}", "stream_options", "unknown_parameter")
    if Fields(options).boolean("include_obfuscation"):
        raise invalid("'include_obfuscation' is not supported.", "stream_options", "unsupported_parameter")
    return Fields(options).boolean("include_usage")


def _sampling(given: Fields, chat: bool) -> SamplingParams:
    stop = given.strings("stop", MAX_STOP_STRINGS)
    if any(len(text) > MAX_STOP_CHARS for text in stop):
        raise invalid(f"Invalid 'stop': at most {MAX_STOP_CHARS} characters each.", "stop", "string_above_max_length")
    return SamplingParams(
        max_tokens=_max_tokens(given, chat),
        min_tokens=given.integer("min_tokens", 0),
        temperature=given.number("temperature", 1.0),
        top_k=_top_k(given),
        top_p=given.number("top_p", 1.0),
        min_p=given.number("min_p", 0.0),
        presence_penalty=given.number("presence_penalty", 0.0),
        frequency_penalty=given.number("frequency_penalty", 0.0),
        repetition_penalty=given.number("repetition_penalty", 1.0),
        logit_bias=_logit_bias(given),
        seed=_seed(given),
        stop=stop,
        stop_token_ids=given.integers("stop_token_ids", MAX_STOP_TOKENS),
        ignore_eos=given.boolean("ignore_eos"),
    )


def _max_tokens(given: Fields, chat: bool) -> int:
    """The newer name wins. An explicit 0 is refused, since inside the engine it means "no limit"."""
    for name in ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",):
        value = given.integer(name, -1)
        if value == -1:
            continue
        if value < 1:
            raise invalid(f"Invalid '{name}': must be at least 1, got {value}.", name, "integer_below_min_value")
        if value > MAX_MAX_TOKENS:
            problem = f"Invalid '{name}': must be at most {MAX_MAX_TOKENS}, got {value}."
            raise invalid(problem, name, "integer_above_max_value")
        return value
    return 0 if chat else COMPLETION_MAX_TOKENS


def _top_k(given: Fields) -> int:
    """Servers disagree on how to spell "off": -1 and 0 are both taken."""
    top_k = given.integer("top_k", 0)
    return 0 if top_k == -1 else top_k


def _seed(given: Fields) -> int:
    """Any 64-bit integer. Negative ones are taken modulo 2**64, since clients draw signed seeds."""
    return given.integer("seed", secrets.randbits(63)) % 2**64


def _logit_bias(given: Fields) -> tuple[tuple[int, float], ...]:
    """JSON keys are strings, so token ids come as decimal text."""
    biases = given.mapping("logit_bias")
    if len(biases) > MAX_LOGIT_BIAS:
        raise invalid(f"Invalid 'logit_bias': at most {MAX_LOGIT_BIAS} entries.", "logit_bias", "object_above_max_size")
    parsed: dict[int, float] = {}
    for key, value in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10) or int(key) in parsed:
            raise invalid(f"Invalid 'logit_bias': {key[:64]!a} is no token id.", "logit_bias", "invalid_value")
        parsed[int(key)] = as_number("logit_bias", value)
    return tuple(sorted(parsed.items()))


def _messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    messages = body.get("messages")
    if messages is None:
        raise invalid("Missing required parameter: 'messages'.", "messages", "missing_required_parameter")
    if not isinstance(messages, list):
        raise wrong_type("messages", messages, "a list of objects")
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise invalid(f"Invalid 'messages': between 1 and {MAX_MESSAGES} of them.", "messages", "invalid_value")
    return tuple(_message(f"messages[{index}]", message) for index, message in enumerate(messages))


def _message(path: str, message: Any) -> Message:
    if not isinstance(message, dict):
        raise wrong_type(path, message, "an object")
    for name, value in message.items():
        if name not in ("role", "content", "name") and value not in (None, []):
            raise _unsupported(f"{path}.{name[:64]}")
    role = as_text(f"{path}.role", message.get("role"))
    if role not in _ROLES:
        raise invalid(f"Invalid '{path}.role': one of {', '.join(_ROLES)}.", f"{path}.role", "invalid_value")
    parsed = {"role": role, "content": _content(f"{path}.content", message.get("content"))}
    if message.get("name") is not None:
        parsed["name"] = as_text(f"{path}.name", message["name"])
    return parsed


def _content(path: str, content: Any) -> str:
    """Text, or text parts, which are joined. Parts of other kinds (images, audio) are refused."""
    if not isinstance(content, list):
        return as_text(path, content)
    texts: list[str] = []
    for index, part in enumerate(content):
        at = f"{path}[{index}]"
        if not isinstance(part, dict):
            raise wrong_type(at, part, "an object")
        if part.get("type") != "text":
            raise _unsupported(f"{at}.type")
        texts.append(as_text(f"{at}.text", part.get("text")))
    return "".join(texts)


def _unsupported(path: str) -> ApiError:
    return invalid(f"'{path}' is not supported by this server.", path, "unsupported_parameter")


def _prompts(body: Mapping[str, Any], vocab_size: int) -> tuple[str | tuple[int, ...], ...]:
    """A text, token ids, or a list of either."""
    prompt = body.get("prompt")
    if prompt is None:
        raise invalid("Missing required parameter: 'prompt'.", "prompt", "missing_required_parameter")
    if isinstance(prompt, str) or _is_ids(prompt):
        prompt = [prompt]
    if not isinstance(prompt, list):
        raise wrong_type("prompt", prompt, "a string, a list of token ids, or a list of these")
    if not 1 <= len(prompt) <= MAX_PROMPTS:
        raise invalid(f"Invalid 'prompt': between 1 and {MAX_PROMPTS} prompts.", "prompt", "invalid_value")
    return tuple(_prompt(f"prompt[{index}]", one, vocab_size) for index, one in enumerate(prompt))


def _prompt(path: str, prompt: Any, vocab_size: int) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        return as_text(path, prompt)
    if not _is_ids(prompt):
        raise wrong_type(path, prompt, "a string or a list of token ids")
    for token in prompt:
        if not 0 <= token < vocab_size:
            raise invalid(f"Invalid '{path}': token id outside the vocabulary of {vocab_size}.", path, "invalid_value")
    return tuple(prompt)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
