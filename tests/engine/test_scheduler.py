from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.scheduler import LONGEST_CHUNK_S, Need, Turn, pace_chunk, plan_step

needs = st.lists(
    st.builds(Need, st.uuids().map(str), st.integers(0, 50), st.integers(-1, 9)),
    max_size=6,
    unique_by=lambda need: need.request_id,
)


def test_nothing_to_do_is_an_empty_step() -> None:
    assert plan_step([], 8) == ()


def test_every_decoder_gets_a_token_and_one_prompt_a_chunk() -> None:
    step = plan_step([Need("a", 0, 3), Need("b", 20, -1), Need("c", 0, 1), Need("d", 20, -1)], 8)
    assert step == (Turn("b", 8), Turn("a", 0), Turn("c", 0))


def test_the_prompt_served_longest_ago_is_next() -> None:
    assert plan_step([Need("a", 20, 5), Need("b", 20, 4)], 8)[0].request_id == "b"


def test_a_newcomer_is_served_before_a_prompt_under_way() -> None:
    assert plan_step([Need("a", 20, 0), Need("b", 20, -1)], 8)[0].request_id == "b"


def test_the_last_chunk_is_what_is_left() -> None:
    assert plan_step([Need("a", 3, 5)], 8) == (Turn("a", 3),)


@given(needs, st.integers(1, 20))
def test_no_step_holds_more_than_one_chunk_or_leaves_a_decoder_out(sequences: list[Need], chunk: int) -> None:
    turns = plan_step(sequences, chunk)
    chunks = [turn for turn in turns if turn.prefill_tokens]
    decoding = [need.request_id for need in sequences if not need.prompt_tokens_left]
    prefilling = {need.request_id: need.prompt_tokens_left for need in sequences if need.prompt_tokens_left}
    assert [turn.request_id for turn in turns if not turn.prefill_tokens] == decoding
    assert len(chunks) == min(1, len(prefilling))
    assert all(1 <= turn.prefill_tokens <= min(chunk, prefilling[turn.request_id]) for turn in chunks)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 9))
def test_prompts_share_turns_evenly_until_they_are_done(lengths: list[int], chunk: int) -> None:
    left = {str(index): length for index, length in enumerate(lengths)}
    last = dict.fromkeys(left, -1)
    turns = dict.fromkeys(left, 0)
    for step in range(sum(lengths)):
        waiting = [Need(name, left[name], last[name]) for name in left if left[name]]
        if not waiting:
            break
        (turn,) = plan_step(waiting, chunk)
        left[turn.request_id] -= turn.prefill_tokens
        last[turn.request_id] = step
        turns[turn.request_id] += 1
        unfinished = [turns[name] for name in left if left[name]]
        assert not unfinished or max(unfinished) - min(unfinished) <= 1
    assert not any(left.values())


@pytest.mark.parametrize(
    ("limit", "ran", "seconds", "then"),
    [
        (256, 256, 0.1, 512),
        (256, 256, 0.7, 256),
        (256, 40, 0.1, 256),
        (256, 256, 2.0, 128),
        (1024, 200, 4.0, 50),
        (256, 1, 90.0, 1),
    ],
)
def test_chunks_are_paced_by_what_they_took(limit: int, ran: int, seconds: float, then: int) -> None:
    assert pace_chunk(limit, ran, seconds) == then


@given(st.floats(0.5, 50_000), st.integers(1, 16384))
def test_pacing_settles_within_the_time_a_chunk_may_take(tokens_per_s: float, policy_tokens: int) -> None:
    limit = 256
    for _ in range(12):
        ran = min(limit, policy_tokens)
        limit = pace_chunk(limit, ran, ran / tokens_per_s)
    settled = min(limit, policy_tokens)
    assert settled == 1 or settled / tokens_per_s <= LONGEST_CHUNK_S
    assert settled == policy_tokens or settled / tokens_per_s >= LONGEST_CHUNK_S / 4 or settled == 1
