"""Text on one side, token ids on the other: the chat template, encoding and decoding of one checkpoint.

Reads a local folder and nothing else: no name is ever looked up on a hub.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from server.errors import CheckpointInvalid, ContextLengthExceeded, InvalidRequest, UnsupportedParameter
from server.text.answer import AnswerReader
from server.text.call_grammar import CallMarkers
from server.text.chat_template import ChatTemplate, closes_thought, opens_thought
from server.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from server.text.guide import GuideBuilder
from server.text.markers import find_markup, find_shown_ids
from server.text.thinking import plan_thinking
from server.text.tokenizer_check import check_files, check_template
from server.text.tools import Tool
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


class EncodedPrompt(msgspec.Struct, frozen=True):
    """A prompt as the model reads it."""

    token_ids: tuple[int, ...]
    opens_thought: bool = False
    """True when it ends inside a thought, so that the answer begins in one."""
    closes_thought: bool = False
    """True when it ends with a thought that is over, so that the answer shall have none."""


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
        self._template = ChatTemplate(tokenizer)
        self.markup = find_markup(tokenizer)
        """How thoughts and calls are marked in what the model writes."""
        self._hidden = stop_ids | (self._special - find_shown_ids(tokenizer, self.markup))
        self._turn_id = self._find_turn_id()
        self.guides = GuideBuilder(self._backend, vocab_size, stop_ids)
        """Holds answers to a form."""

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        limit_tokens: int | None = None,
        *,
        tools: Sequence[Tool] = (),
        template_kwargs: Mapping[str, Any] | None = None,
        limit_chars: int | None = None,
    ) -> EncodedPrompt:
        """The prompt, up to where the assistant's answer begins.

        Raises InvalidRequest when the checkpoint's chat template refuses the messages, shows no tools, or is handed a
        name that this server sets itself. With a limit, a text so long that it certainly exceeds it is not encoded to
        its end: that raises ContextLengthExceeded. A shorter one that exceeds it is returned. A text of more than
        `limit_chars` is not encoded at all: that raises InvalidRequest.
        """
        text = self._template.render(messages, tools, template_kwargs)
        check_chars(text, limit_chars, "messages")
        ids = self._encode_within(text, limit_tokens)
        if not ids:
            raise InvalidRequest("The model's chat template makes no prompt of these messages.", param="messages")
        self._refuse_unknown(ids, "The messages contain", "messages")
        turn = "" if self._turn_id is None else self._decode([self._turn_id])
        think = self.markup.think
        return EncodedPrompt(tuple(ids), opens_thought(text, think, turn), closes_thought(text, think))

    def plan_thinking(self, effort: str) -> dict[str, Any]:
        """What to hand this checkpoint's template for a `reasoning_effort`. Raises InvalidRequest for no effort."""
        return plan_thinking(effort, self._template.source)

    def encode_text(
        self, text: str, limit_tokens: int | None = None, *, limit_chars: int | None = None
    ) -> tuple[int, ...]:
        """The token ids of a plain prompt: no template; names of special tokens in it are those tokens.

        What the tokenizer itself puts around any text, often a token that begins it, is put there, as vLLM does for
        completions. Limits and errors as for `encode_chat`.
        """
        check_chars(text, limit_chars, "prompt")
        ids = self._encode_within(text, limit_tokens, adds_special=True)
        if not ids:
            raise InvalidRequest("`prompt` is empty; it must have a token at least.", param="prompt")
        self._refuse_unknown(ids, "`prompt` contains", "prompt")
        return tuple(ids)

    def count(self, text: str) -> int:
        """How many tokens a text has by itself, with nothing put around it."""
        return len(self._encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens shown. Raises InvalidRequest for an id that the model does not have."""
        wrong = next((number for number in ids if not 0 <= number < self.vocab_size), None)
        if wrong is not None:
            raise InvalidRequest(
                f"`tokens` has the id {wrong}; the model's ids are 0 to {self.vocab_size - 1}.", param="tokens"
            )
        return self._decode(list(ids))

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

    def build_answer_reader(self, tools: Sequence[Tool] = (), *, opens_thought: bool = False) -> AnswerReader:
        """A fresh reader for one answer, of what a detokenizer shows of it."""
        return AnswerReader(self.markup, tools, opens_thought=opens_thought)

    def find_marker(self, marker: str) -> int | None:
        """The token that a marker is; None for one that takes several, and for an empty one."""
        ids = self._encode(marker)
        return ids[0] if len(ids) == 1 else None

    @cached_property
    def thought_end_ids(self) -> tuple[int, ...]:
        """The tokens that end a thought; none where thoughts are not marked."""
        return tuple(self._encode(self.markup.think.end)) if self.markup.think is not None else ()

    @cached_property
    def call_markers(self) -> CallMarkers | None:
        """What stands before and after a call, and the tokens for it; None where there are no calls."""
        call = self.markup.call
        if call is None:
            return None
        return CallMarkers(call.start, call.end, self.find_marker(call.start), self.find_marker(call.end))

    def _find_turn_id(self) -> int | None:
        """The special token that a message begins with: the first of what opens the assistant's answer."""
        ids = self._encode(self._template.render_opening())
        return ids[0] if ids and ids[0] in self._special else None

    def _encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        # The backend directly: transformers' own `encode` warns on stderr about long texts and keeps per-call state.
        if self._backend is not None:
            # Not its `encode`, which holds the interpreter: a million letters stopped every thread for 5 s. And without
            # the places of the tokens in the text, which took more than half of the time (tokenizers 0.23.3, 2026-11).
            return self._backend.encode_batch_fast([text], add_special_tokens=adds_special)[0].ids
        return cast("list[int]", self._tokenizer.encode(text, add_special_tokens=adds_special))

    def _encode_within(self, text: str, limit_tokens: int | None, *, adds_special: bool = False) -> list[int]:
        if limit_tokens is not None and len(text) >= LONG_TEXT_CHARS:
            self._refuse_far_too_long(text, limit_tokens)
        return self._encode(text, adds_special=adds_special)

    def _refuse_unknown(self, ids: Sequence[int], what: str, param: str) -> None:
        if max(ids) >= self.vocab_size:
            raise InvalidRequest(f"{what} a special token that the tokenizer has and the model does not.", param=param)

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
    codec = TextCodec(tokenizer, frozenset(stop_ids), _vocab_size(config) or len(tokenizer))
    with suppress(UnsupportedParameter):  # told to whoever asks for a form
        codec.guides.prepare()
    return codec


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


def check_chars(text: str, limit_chars: int | None, param: str) -> None:
    """Raise InvalidRequest for a text that has more."""
    if limit_chars is not None and len(text) > limit_chars:
        raise InvalidRequest(
            f"At most {limit_chars:,} characters are tokenized for a count; this prompt has {len(text):,}. Count it in "
            "parts.",
            param=param,
        )


def _slices(text: str) -> Iterator[str]:
    return (text[start : start + SLICE_CHARS] for start in range(0, len(text), SLICE_CHARS))
