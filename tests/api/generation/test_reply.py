from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from server.api.generation.reply import Reply, Usage
from server.api.generation.transcript import Piece
from server.errors import StreamStopped
from server.events import (
    EngineEvent,
    Outcome,
    PrefillAdvanced,
    SequenceEnded,
    StepDone,
    TokenLogprob,
    TokensEmitted,
)
from server.text.answer import AnswerReader
from server.text.detokenizer import ByteDetokenizer
from server.text.markup import NO_MARKUP
from server.text.parts import TextDelta

EOS = 256


def build_reply(*stops: str) -> Reply:
    detokenizer = ByteDetokenizer([bytes([n]) for n in range(256)], frozenset({EOS}))
    return Reply(detokenizer, AnswerReader(NO_MARKUP), prompt_tokens=100, stops=stops)


def text_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.delta.text for piece in pieces if isinstance(piece.delta, TextDelta))


def tokens(*ids: int) -> TokensEmitted:
    return TokensEmitted("r", ids, 0.0)


def ended(outcome: Outcome) -> SequenceEnded:
    return SequenceEnded("r", outcome, 0.0)


def run(reply: Reply, events: Iterable[EngineEvent]) -> str:
    shown = ""
    for event in events:
        shown += text_of(reply.fold(event))
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
    assert build_reply().fold(StepDone(0.0, 0.1, 0, 1, 1)) == []


def test_tokens_that_another_sequence_had_are_cached_ones() -> None:
    reply = build_reply()
    run(reply, [PrefillAdvanced("r", 10, 10, 0.1), PrefillAdvanced("r", 90, 0, 0.0, 80), ended("stop")])
    assert reply.usage.cached_tokens == 80


def scored(text: bytes) -> TokensEmitted:
    """Each byte a token, with its own number as its score."""
    return TokensEmitted("r", tuple(text), 0.0, logprobs=tuple(TokenLogprob(-float(byte)) for byte in text))


def pieces_of(reply: Reply, events: Iterable[EngineEvent]) -> list[tuple[str, bytes]]:
    """Each piece that shows something, with the tokens whose scores came with it."""
    pieces = [piece for event in events for piece in reply.fold(event)]
    assert all(entry.score.logprob == -entry.token_id for piece in pieces for entry in piece.scores)
    return [(text_of([piece]), bytes(entry.token_id for entry in piece.scores)) for piece in pieces]


def test_scores_come_with_the_text_of_their_tokens() -> None:
    assert pieces_of(build_reply(), [scored(b"a"), scored(b"bc"), ended("length")]) == [("a", b"a"), ("bc", b"bc")]


def test_the_scores_of_a_characters_parts_come_together_with_it() -> None:
    letter = "ě".encode()
    events = [scored(b"a" + letter[:1]), scored(letter[1:]), scored(letter[:1]), ended("length")]
    assert pieces_of(build_reply(), events) == [("a", b"a"), ("ě", letter)]


def test_scores_of_held_back_text_wait_with_it() -> None:
    events = [scored(b"a <"), scored(b"/en"), scored(b"!"), scored(b"<"), ended("length")]
    assert pieces_of(build_reply("</end>"), events) == [("a ", b"a "), ("</en!", b"</en!"), ("<", b"<")]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_scores_of_text_that_a_stop_string_cut_off_are_never_shown(size: int) -> None:
    data = b"alpha beta gamma delta"
    reply = build_reply("beta gamma")
    events: list[EngineEvent] = []
    for at in range(0, len(data), size):
        events.append(scored(data[at : at + size]))
        if at + size >= len(b"alpha beta gamma"):
            break
    shown = pieces_of(reply, events)
    assert b"".join(tokens for _, tokens in shown) == b"alpha "
    assert reply.finish_reason == "stop"


def test_a_token_that_is_cut_in_its_middle_is_shown_with_its_score() -> None:
    words = [b"one", b" two|", b"three"]
    reply = Reply(ByteDetokenizer(words, frozenset()), AnswerReader(NO_MARKUP), prompt_tokens=1, stops=["|"])
    (piece,) = reply.fold(TokensEmitted("r", (0, 1, 2), 0.0, logprobs=(TokenLogprob(-1.0),) * 3))
    assert text_of([piece]) == "one two"
    assert [entry.token_id for entry in piece.scores] == [0, 1]


def test_special_tokens_have_no_score_wherever_they_stand() -> None:
    ids = (EOS, *b"ab", EOS)
    event = TokensEmitted("r", ids, 0.0, logprobs=tuple(TokenLogprob(-float(number)) for number in ids))
    assert pieces_of(build_reply(), [event, ended("stop")]) == [("ab", b"ab")]


def test_without_scores_there_are_none() -> None:
    assert build_reply().fold(tokens(*b"ab")) == [Piece(TextDelta("ab", 0))]
