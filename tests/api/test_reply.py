from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from server.api.reply import Reply, Usage
from server.errors import StreamStopped
from server.events import EngineEvent, Outcome, PrefillAdvanced, SequenceEnded, StepDone, TokensEmitted
from server.text.detokenizer import ByteDetokenizer

EOS = 256


def build_reply(*stops: str) -> Reply:
    return Reply(ByteDetokenizer([bytes([n]) for n in range(256)], frozenset({EOS})), stops, prompt_tokens=100)


def tokens(*ids: int) -> TokensEmitted:
    return TokensEmitted("r", ids, 0.0)


def ended(outcome: Outcome) -> SequenceEnded:
    return SequenceEnded("r", outcome, 0.0)


def run(reply: Reply, events: Iterable[EngineEvent]) -> str:
    shown = ""
    for event in events:
        shown += reply.fold(event)
        if reply.finish_reason is not None:
            break
    return shown


def spell(text: str, size: int = 1) -> Sequence[TokensEmitted]:
    data = text.encode()
    return [tokens(*data[at : at + size]) for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_an_answer_that_the_model_ends(size: int) -> None:
    reply = build_reply()
    assert run(reply, [*spell("žluť 👋", size), tokens(EOS), ended("stop")]) == "žluť 👋"
    assert reply.finish_reason == "stop"
    assert reply.usage == Usage(100, len("žluť 👋".encode()) + 1, 0)


def test_an_answer_that_is_cut_mid_character_shows_whole_ones_only() -> None:
    reply = build_reply()
    assert run(reply, [tokens(*"aě".encode()[:2]), ended("length")]) == "a"
    assert reply.finish_reason == "length"


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_stop_string_ends_the_answer_before_it_and_counts_tokens_up_to_it(size: int) -> None:
    reply = build_reply("beta gamma")
    assert run(reply, [*spell("alpha beta gamma delta", size), ended("length")]) == "alpha "
    assert reply.finish_reason == "stop"
    assert reply.usage.completion_tokens == len("alpha beta gamma")


def test_held_back_text_that_became_no_stop_is_released_at_the_end() -> None:
    reply = build_reply("</end>")
    assert run(reply, [*spell("a </en"), ended("length")]) == "a </en"
    assert reply.finish_reason == "length"


def test_cached_tokens_are_those_that_the_first_chunk_found_done() -> None:
    reply = build_reply()
    run(reply, [PrefillAdvanced("r", 80, 20, 0.1), PrefillAdvanced("r", 100, 20, 0.1), tokens(EOS), ended("stop")])
    assert reply.usage.cached_tokens == 60


def test_where_it_is_is_said_in_words() -> None:
    reply = build_reply()
    assert reply.place == "in prefill at 0 %"
    reply.fold(PrefillAdvanced("r", 40, 40, 0.1))
    assert reply.place == "in prefill at 40 %"
    reply.fold(tokens(*b"abc"))
    assert reply.place == "in decode after 3 tokens"


def test_an_end_that_somebody_else_made_is_no_answer() -> None:
    with pytest.raises(StreamStopped):
        build_reply().fold(ended("cancelled"))


def test_other_events_add_nothing() -> None:
    assert build_reply().fold(StepDone(0.0, 0.1, 0, 1, 1)) == ""
