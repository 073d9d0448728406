from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.scheduler import (
    CAUTION,
    FIRST_CHUNK_TOKENS,
    LONGEST_CHUNK_S,
    PATIENCE_CHUNKS,
    ChunkLimits,
    Need,
    Turn,
    plan_step,
    sum_load,
)
from server.events import StepCost
from server.policy import find_limit

needs = st.lists(
    st.builds(
        Need,
        st.uuids().map(str),
        st.integers(0, 50),
        st.integers(-1, 9),
        st.integers(0, 2),
        st.integers(0, 9000),
        st.integers(0, 4),
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda need: need.request_id,
)
EXACT = 0.0


def plan(sequences: Iterable[Need], limits: ChunkLimits, step: int = 0) -> tuple[Turn, ...]:
    return plan_step(sequences, limits, step)


def limit(tokens: int = 8, stall_s: float = 0.5, cost: StepCost | None = None, ran: int = 100_000) -> ChunkLimits:
    return ChunkLimits(tokens, ran, stall_s, cost or StepCost())


def measured(tokens_per_s: float, decode_s: float = 0.01, error: float = EXACT) -> StepCost:
    return StepCost(prefill_s=64 / tokens_per_s, sequence_s=decode_s, error_ratio=error, steps=100)


def chunk_of(left: int, limits: ChunkLimits, decoding: int = 0) -> int:
    others = [Need(f"d{i}", 0, 0) for i in range(decoding)]
    return plan([Need("p", left, -1), *others], limits)[0].prefill_tokens


def test_nothing_to_do_is_an_empty_step() -> None:
    assert plan([], limit()) == ()


def test_every_decoder_moves_with_its_drafts_and_one_prompt_gets_a_chunk() -> None:
    waiting = [
        Need("a", 0, 3, draft_tokens=2),
        Need("b", 20, -1),
        Need("c", 0, 1),
        Need("d", 20, -1),
    ]
    assert plan(waiting, limit()) == (Turn("b", 8), Turn("a", 0, 2), Turn("c", 0, 0))


def test_the_prompt_served_longest_ago_is_next() -> None:
    assert plan([Need("a", 20, 5), Need("b", 20, 4)], limit())[0].request_id == "b"


def test_a_newcomer_is_served_before_a_prompt_under_way() -> None:
    assert plan([Need("a", 20, 0), Need("b", 20, -1)], limit())[0].request_id == "b"


def test_a_childs_prompt_yields_to_a_parents() -> None:
    child, parent = Need("child", 20, -1, priority=1), Need("parent", 20, 7, priority=0)
    assert plan([child, parent], limit())[0].request_id == "parent"


def read_beside_newcomers(most_steps: int, each_step: int, priority: int = 0, others: int = 1) -> list[str]:
    """Whose prompts were read: long ones by name, and "new" for those that keep on coming, one chunk each."""
    long = {f"long {index}": Need(f"long {index}", 1000, -1, priority, came_step=0) for index in range(others)}
    newcomers: list[Need] = []
    read: list[str] = []
    for step in range(1, most_steps + 1):
        newcomers += [Need(f"{step}-{index}", 5, -1, came_step=step - 1) for index in range(each_step)]
        (turn,) = plan([*long.values(), *newcomers], limit(), step)
        if turn.request_id in long:
            long[turn.request_id] = msgspec.structs.replace(long[turn.request_id], last_chunk_step=step)
        newcomers = [need for need in newcomers if need.request_id != turn.request_id][:5]
        read.append(turn.request_id if turn.request_id in long else "new")
    return read


@pytest.mark.parametrize("each_step", [1, 5])
def test_short_prompts_that_never_end_leave_a_long_one_its_turns(each_step: int) -> None:
    read = read_beside_newcomers(60, each_step)
    assert read.count("long 0") >= 60 // 6 - 1, read  # of six that wait at once


def test_of_each_round_of_long_prompts_newcomers_take_one_chunk() -> None:
    long = [Need("a", 900, 9, came_step=0), Need("b", 900, 8, came_step=0), Need("c", 900, 7, came_step=0)]
    at_once = plan([*long, Need("new", 5, -1, came_step=9)], limit(), step=10)
    assert at_once[0].request_id == "new"
    after_one = plan([*long, Need("new", 5, -1, came_step=10)], limit(), step=11)
    assert after_one[0].request_id == "c"


def test_a_childs_prompt_gets_a_chunk_now_and_then_though_parents_never_end() -> None:
    read = read_beside_newcomers(10 * PATIENCE_CHUNKS, 2, priority=1)
    assert 8 <= read.count("long 0") <= 10


def test_parents_keep_most_chunks_however_many_children_wait() -> None:
    read = read_beside_newcomers(40 * PATIENCE_CHUNKS, 2, priority=1, others=20)
    assert read.count("new") >= 0.9 * len(read)
    assert len(set(read)) > 20, "and each child gets its turn"


def test_the_last_chunk_is_what_is_left() -> None:
    assert plan([Need("a", 3, 5)], limit()) == (Turn("a", 3),)


@given(needs, st.integers(1, 20))
def test_no_step_holds_more_than_one_chunk_or_leaves_a_decoder_out(sequences: list[Need], chunk: int) -> None:
    turns = plan(sequences, limit(chunk))
    chunks = [turn for turn in turns if turn.prefill_tokens]
    decoding = [(need.request_id, need.draft_tokens) for need in sequences if not need.prompt_tokens_left]
    prefilling = {need.request_id: need for need in sequences if need.prompt_tokens_left}
    assert [(turn.request_id, turn.draft_tokens) for turn in turns if not turn.prefill_tokens] == decoding
    assert len(chunks) == min(1, len(prefilling))
    for turn in chunks:
        assert 1 <= turn.prefill_tokens <= min(chunk, prefilling[turn.request_id].prompt_tokens_left)
        assert prefilling[turn.request_id].priority == min(need.priority for need in prefilling.values())


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 9))
def test_prompts_share_turns_evenly_until_they_are_done(lengths: list[int], chunk: int) -> None:
    left = {str(index): length for index, length in enumerate(lengths)}
    last = dict.fromkeys(left, -1)
    turns = dict.fromkeys(left, 0)
    for step in range(sum(lengths)):
        waiting = [Need(name, left[name], last[name]) for name in left if left[name]]
        if not waiting:
            break
        (turn,) = plan(waiting, limit(chunk), step)
        left[turn.request_id] -= turn.prefill_tokens
        last[turn.request_id] = step
        turns[turn.request_id] += 1
        unfinished = [turns[name] for name in left if left[name]]
        assert not unfinished or max(unfinished) - min(unfinished) <= 1
    assert not any(left.values())


def test_before_anything_was_measured_the_first_chunk_is_a_careful_one() -> None:
    assert chunk_of(9000, limit(4096, ran=0)) == FIRST_CHUNK_TOKENS


def test_a_chunk_is_at_most_twice_the_longest_that_has_run() -> None:
    assert chunk_of(90_000, limit(16_384, ran=300)) == 600


@pytest.mark.parametrize(("tokens_per_s", "tokens"), [(1000, 1000), (100, 100), (0.5, 1), (1e6, 4096)])
def test_alone_a_chunk_takes_a_second_at_most(tokens_per_s: float, tokens: int) -> None:
    assert chunk_of(9000, limit(4096, cost=measured(tokens_per_s))) == tokens


@pytest.mark.parametrize(("stall_s", "tokens"), [(0.5, 480), (0.1, 80), (30.0, 980)])
def test_beside_decoders_the_whole_step_keeps_to_the_stall(stall_s: float, tokens: int) -> None:
    chunk = chunk_of(9000, limit(4096, stall_s, measured(1000)), decoding=2)
    assert chunk == tokens


def test_what_predictions_miss_by_is_kept_in_hand() -> None:
    sure = chunk_of(9000, limit(4096, cost=measured(1000)), decoding=1)
    unsure = chunk_of(9000, limit(4096, cost=measured(1000, error=0.25)), decoding=1)
    assert unsure == pytest.approx(sure / (1 + 0.25 * CAUTION), abs=10)


def test_decoding_that_takes_the_whole_stall_does_not_starve_a_prompt() -> None:
    assert chunk_of(9000, limit(4096, 0.05, measured(1000, decode_s=0.08)), decoding=1) == 80


def test_a_later_chunk_of_a_long_prompt_is_shorter_when_context_costs() -> None:
    cost = StepCost(prefill_s=0.064, prefill_context_s=0.064, steps=9, error_ratio=EXACT)
    early, late = Need("p", 9000, -1), Need("p", 9000, -1, context_tokens=8192)
    first, later = (plan([need], limit(4096, cost=cost))[0].prefill_tokens for need in (early, late))
    assert later < first / 2


def test_the_heads_reading_counts_too() -> None:
    cost = StepCost(prefill_s=0.064, draft_row_s=0.001, steps=9, error_ratio=EXACT)
    assert plan([Need("p", 9000, -1)], limit(4096, cost=cost))[0].prefill_tokens == 1000
    assert plan([Need("p", 9000, -1, primes=True)], limit(4096, cost=cost))[0].prefill_tokens == 500


@given(needs, st.floats(0.0001, 0.5), st.floats(1, 50_000), st.floats(0.01, 2))
def test_a_step_with_a_chunk_is_within_the_time_or_as_short_as_can_be(
    sequences: list[Need], decode_s: float, tokens_per_s: float, stall_s: float
) -> None:
    cost = measured(tokens_per_s, decode_s)
    turns = plan(sequences, limit(4096, stall_s, cost))
    chunk = sum(turn.prefill_tokens for turn in turns)
    decoding = decode_s * sum(1 for turn in turns if not turn.prefill_tokens)
    if chunk > 1:
        taken = decoding + chunk / tokens_per_s
        assert taken <= LONGEST_CHUNK_S + 1e-9
        assert not decoding or taken <= max(stall_s, 2 * decoding) + 1e-9


def test_the_load_of_a_step_counts_drafts() -> None:
    load = sum_load([Need("a", 0, 0, context_tokens=10, draft_tokens=3), Need("b", 0, 0, context_tokens=5)])
    assert (load.sequences, load.rows, load.wide_sequences, load.context_tokens) == (2, 5, 1, 15)
    assert load.draft_calls == 3


def test_no_limit_takes_a_step_that_is_planned_for_a_stall() -> None:
    stall, longest_gap = find_limit("engine.stall_s"), find_limit("engine.decode_stall_ms")
    assert stall.minimum is not None
    assert longest_gap.maximum is not None
    assert longest_gap.maximum / 1000 <= LONGEST_CHUNK_S
    assert stall.minimum >= 10 * LONGEST_CHUNK_S
    assert FIRST_CHUNK_TOKENS / stall.minimum < 13, "tok/s of the slowest machine on which the first chunk is no stall"
