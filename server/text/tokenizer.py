"""Text on one side, token ids on the other: the chat template, encoding and decoding of one checkpoint.

Reads a local folder and nothing else: no name is ever looked up on a hub.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jinja2

from server.errors import CheckpointInvalid, ContextLengthExceeded, InvalidRequest
from server.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from server.text.template_limit import limit_template
from server.text.tokenizer_check import check_files, check_template
from server.text.vocabulary import build_byte_table

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

LONG_TEXT_CHARS = 1_000_000
"""From here on a text is counted slice by slice first: encoding 1.2 MB at once took 500 MB of memory
(tokenizers 0.23.3, 2026-11, x86-64), and a prompt that cannot fit should not."""

SLICE_CHARS = 200_000
"""A slice of a long text."""

SLICE_SLACK_TOKENS = 16
"""A cut between two slices can add this many tokens that the whole text does not have."""

RENDER_S = 10.0
"""Processor time that a chat template may take: twenty times what 8,000 messages took. A few nested loops can take
years, and each held one of the two text threads for good."""

_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a chat template can raise: its own complaint, or a fault in what it does with the messages."""


class TextCodec:
    """One checkpoint's tokenizer. Its methods may be called from any thread."""

    def __init__(self, tokenizer: TokenizerWrapper, stop_ids: frozenset[int], vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self.stop_ids = stop_ids
        """Ids that end an answer: those of generation_config.json, of config.json and the tokenizer's own."""
        self.vocab_size = vocab_size
        """Ids that the model knows: 0..vocab_size-1."""
        tokens = cast("list[str | None]", tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
        self._bytes = build_byte_table(self._backend and self._backend.decoder, tokens)
        self._special = _special_ids(tokenizer)
        self._hidden = stop_ids | self._special
        self._turn_id = self._find_turn_id()

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], limit_tokens: int | None = None) -> list[int]:
        """The prompt's token ids, up to where the assistant's answer begins.

        Raises InvalidRequest when the checkpoint's chat template refuses the messages. With a limit, a text so long
        that it certainly exceeds it is not encoded to its end: that raises ContextLengthExceeded. A shorter one that
        exceeds it is returned.
        """
        text = self._render(messages)
        if limit_tokens is not None and len(text) >= LONG_TEXT_CHARS:
            self._refuse_far_too_long(text, limit_tokens)
        ids = self._encode(text)
        if not ids:
            raise InvalidRequest("The model's chat template makes no prompt of these messages.", param="messages")
        if max(ids) >= self.vocab_size:
            raise InvalidRequest(
                "The messages contain a special token that the tokenizer has and the model does not.", param="messages"
            )
        return ids

    def find_boundaries(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Where messages begin in a prompt, ascending; none when the template marks them by no token of their own."""
        return (
            () if self._turn_id is None else tuple(place for place, token in enumerate(ids) if token == self._turn_id)
        )

    def spell(self, token_id: int) -> bytes:
        """The bytes that a token stands for, a special one's name among them; none for an id that has no token.

        Half a character's bytes are exact where the vocabulary tells them; elsewhere they are those of U+FFFD.
        """
        if self._bytes is not None:
            return self._bytes.table[token_id] if 0 <= token_id < len(self._bytes.table) else b""
        return self._decode([token_id]).encode("utf-8", "replace")

    def build_detokenizer(self) -> Detokenizer:
        """A fresh decoder for one sequence."""
        if self._bytes is None:
            return WindowDetokenizer(self._decode, self._hidden)
        return ByteDetokenizer(self._bytes.table, self._hidden, trims_first_space=self._bytes.trims_first_space)

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        if not self._tokenizer.has_chat_template:
            raise InvalidRequest("The served model has no chat template, so it cannot take chat messages.")
        try:
            return self._apply_template(messages, opens_answer=True)
        except _TEMPLATE_FAULTS as fault:
            reason = " ".join(str(fault).split())[:300] or type(fault).__name__
            raise InvalidRequest(
                f"The model's chat template does not take these messages: {reason}", param="messages"
            ) from fault

    def _apply_template(self, messages: Sequence[Mapping[str, Any]], *, opens_answer: bool) -> str:
        with limit_template(RENDER_S, _build_loop_error):
            # Thinking is switched off where a template can: nothing here tells thoughts and answer apart yet.
            rendered = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=opens_answer, enable_thinking=False
            )
        return cast("str", rendered)

    def _find_turn_id(self) -> int | None:
        """The special token that a message begins with: the first of what opens the assistant's answer."""
        if not self._tokenizer.has_chat_template:
            return None
        try:
            message = {"role": "user", "content": "a"}
            closed, opened = (self._apply_template([message], opens_answer=opens) for opens in (False, True))
            ids = self._encode(opened.removeprefix(closed)) if opened.startswith(closed) else []
        except (*_TEMPLATE_FAULTS, InvalidRequest):
            return None
        return ids[0] if ids and ids[0] in self._special else None

    def _encode(self, text: str) -> list[int]:
        # The backend directly: transformers' own `encode` warns on stderr about long texts and keeps per-call state.
        if self._backend is not None:
            return self._backend.encode(text, add_special_tokens=False).ids
        return cast("list[int]", self._tokenizer.encode(text, add_special_tokens=False))

    def _decode(self, ids: list[int]) -> str:
        return cast("str", self._tokenizer.decode(ids))

    def _refuse_far_too_long(self, text: str, limit_tokens: int) -> None:
        counted = 0
        for part in _slices(text):
            counted += len(self._encode(part)) - SLICE_SLACK_TOKENS
            if counted > limit_tokens:
                raise ContextLengthExceeded(counted, limit_tokens, at_least=True)


def load_text_codec(folder: Path) -> TextCodec:
    """The tokenizer of the checkpoint in `folder`. Raises CheckpointInvalid."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Here and not above: transformers takes two seconds to import, which start-up checks need not wait for.
    from mlx_lm.tokenizer_utils import load

    logging.getLogger("transformers").setLevel(logging.ERROR)
    check_files(folder)
    config, generation = _read_json(folder / "config.json"), _read_json(folder / "generation_config.json")
    try:
        tokenizer = load(folder, {"local_files_only": True, "trust_remote_code": False})
    except Exception as fault:  # tokenizers raises plain Exception for a file that it cannot read
        reason = " ".join(str(fault).split())[:300]
        raise CheckpointInvalid(f"The tokenizer in {folder} cannot be read: {reason}") from fault
    if "a" not in tokenizer.decode(tokenizer.encode("a", add_special_tokens=False)):
        # transformers builds an empty tokenizer, without a word, where the vocabulary's file is missing.
        raise CheckpointInvalid(f"The tokenizer in {folder} has no vocabulary (is tokenizer.json missing?).")
    check_template(tokenizer, folder)
    stop_ids = {*_eos_ids(config), *_eos_ids(generation), *tokenizer.eos_token_ids}
    return TextCodec(tokenizer, frozenset(stop_ids), _vocab_size(config) or len(tokenizer))


def _build_loop_error() -> InvalidRequest:
    return InvalidRequest(
        f"The model's chat template made no prompt of these messages in {RENDER_S:g} s of work; it may loop. Send "
        "fewer messages, or have the operator look at the template.",
        param="messages",
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as fault:
        raise CheckpointInvalid(f"{path} cannot be read: {fault}") from fault
    return document if isinstance(document, dict) else {}


def _eos_ids(config: Mapping[str, Any]) -> Iterator[int]:
    """The end-of-sequence ids of a configuration, in either of the places where checkpoints keep them."""
    for part in (config, config.get("text_config") or {}):
        ids = part.get("eos_token_id")
        yield from (ids if isinstance(ids, list) else [] if ids is None else [ids])


def _vocab_size(config: Mapping[str, Any]) -> int | None:
    text_config: Mapping[str, Any] = config.get("text_config") or {}
    return text_config.get("vocab_size") or config.get("vocab_size")


def _special_ids(tokenizer: TokenizerWrapper) -> frozenset[int]:
    added: dict[int, Any] = tokenizer.added_tokens_decoder
    return frozenset({*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)})


def _slices(text: str) -> Iterator[str]:
    return (text[start : start + SLICE_CHARS] for start in range(0, len(text), SLICE_CHARS))
