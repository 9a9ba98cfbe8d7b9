"""Prompts into token ids: the model's chat template and its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from transformers import AutoTokenizer

from replay.engine.detokenize import load_tokenizer
from replay.errors import ModelUnavailable
from replay.openai_wire import invalid
from replay.serving.requests import Message


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

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the tokens of ``text``, found without encoding it. 0 where nothing can be said."""
        return len(text.encode()) // self._longest if self._longest else 0


def _longest_token(tokenizer: Tokenizer) -> int:
    """Bytes that one token can stand for at most, 0 where that does not follow from the vocabulary: a normaliser or a
    special token may swallow text, and only byte-level vocabularies spell out every byte."""
    strips = any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values())
    if strips or tokenizer.normalizer is not None or not isinstance(tokenizer.decoder, ByteLevel):
        return 0
    return max(len(token.encode()) for token in tokenizer.get_vocab())
