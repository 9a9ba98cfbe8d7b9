"""Prompts into token ids: the model's chat template and its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from transformers import AutoTokenizer

from replay.engine.defects import NO_DEFECTS, Defects
from replay.engine.detokenize import load_tokenizer
from replay.engine.schedule import EngineConfig
from replay.errors import ModelUnavailable
from replay.openai_wire import invalid
from replay.serving.requests import Call, Message, Prompt


class PromptEncoder:
    """Encodes prompts with the tokenizer of a weights folder. Reads local files only and runs no code of theirs.

    transformers renders chat templates in jinja's immutable sandbox.
    """

    def __init__(self, folder: Path) -> None:
        """Raises `ModelUnavailable`."""
        self.tokenizer: Tokenizer = load_tokenizer(folder)
        self._longest = _longest_token(self.tokenizer)
        try:
            self._templates = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        except Exception as error:  # whatever is wrong in the folder's files
            raise ModelUnavailable(
                f"the tokenizer in {folder} cannot be loaded: {type(error).__name__}: {error}",
                remedy="Fetch the weights again; a tokenizer that needs code of its own is not served.",
            ) from error

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation as text, up to where the assistant speaks.

        Raises:
            ApiError: 400, the model has no template or its template refuses these messages.
        """
        if not self._templates.chat_template:
            raise invalid("This model has no chat template; use /v1/completions.", "messages", "no_chat_template")
        try:
            text = self._templates.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program: it divides by zero, too
            raise invalid(f"The model's chat template refuses these messages: {error}", "messages") from None
        return str(text)

    def prompts(
        self, call: Call, config: EngineConfig, vocab_size: int, *, defects: Defects = NO_DEFECTS
    ) -> list[Prompt]:
        """Token ids of every prompt of ``call``, each checked against what an engine set up so can ever hold.

        The defect ``prompt_unchecked`` leaves out whether its KV pool can.

        Raises:
            ApiError: 400 that names the parameter.
        """
        param = "messages" if call.chat else "prompt"
        given: Sequence[str | tuple[int, ...]] = [self.render(call.messages)] if call.chat else call.prompts
        check = partial(_check_length, config, param=param, pool=not defects.prompt_unchecked)
        prompts = []
        for prompt in given:
            if isinstance(prompt, str):
                # Megabytes take seconds to encode, only to be refused.
                check(self.fewest_tokens(prompt), at_least=True)
                # A chat template writes the special tokens itself.
                tokens, text = self.encode(prompt, add_special_tokens=not call.chat), prompt
            else:
                tokens, text = list(prompt), None
            if not tokens:
                raise invalid("The prompt holds no token.", param, "empty_prompt")
            check(len(tokens))
            if max(tokens) >= vocab_size:
                # A tokenizer with tokens that its model never got rows for. In the batch they would end every request.
                raise invalid("The prompt holds a token that the model does not have.", param, "invalid_value")
            prompts.append(Prompt(tokens=tokens, text=text))
        return prompts

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the tokens of ``text``, found without encoding it. 0 where nothing can be said."""
        return len(text.encode()) // self._longest if self._longest else 0


def _check_length(config: EngineConfig, num_tokens: int, *, param: str, pool: bool, at_least: bool = False) -> None:
    """Raises `ApiError` for a prompt that leaves no room for an answer or, if asked, does not fit the ``pool``."""
    counted = f"at least {num_tokens}" if at_least else f"{num_tokens}"
    if num_tokens >= config.max_model_len:
        raise invalid(
            f"This model's maximum context length is {config.max_model_len} tokens. However, your prompt has "
            f"{counted} tokens and the answer needs at least one. Please reduce its length.",
            param,
            "context_length_exceeded",
        )
    needed = -(-num_tokens // config.block_size)
    if pool and needed > config.num_blocks:
        raise invalid(
            f"The prompt has {counted} tokens and needs {needed} KV blocks; the server has {config.num_blocks}.",
            param,
            "kv_pool_too_small",
        )


def _longest_token(tokenizer: Tokenizer) -> int:
    """Bytes that one token can stand for at most, 0 where that does not follow from the vocabulary: a normaliser or a
    special token may swallow text, and only byte-level vocabularies spell out every byte."""
    strips = any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values())
    if strips or tokenizer.normalizer is not None or not isinstance(tokenizer.decoder, ByteLevel):
        return 0
    return max(len(token.encode()) for token in tokenizer.get_vocab())
