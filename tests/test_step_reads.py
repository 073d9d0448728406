from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.step_reads import StepReads

FLASH = StepReads(experts=512, experts_per_token=10, expert_bytes=1000, expert_layers=48, dense_bytes=7)


@pytest.mark.parametrize(
    ("rows", "experts"),
    # 512 * (1 - (502/512)^n), by hand.
    [(0, 0.0), (1, 10.0), (2, 19.805), (4, 38.843)],
)
def test_rows_that_draw_alike_share_some_of_their_experts(rows: int, experts: float) -> None:
    assert FLASH.expect_experts(rows) == pytest.approx(experts, abs=0.01)


def test_one_row_reads_the_dense_weights_and_its_own_experts() -> None:
    assert FLASH.count_bytes(1, 1, 0) == pytest.approx(7 + 48 * 10 * 1000)


def test_sparse_attention_reads_its_budget_and_an_index_of_the_rest() -> None:
    reads = StepReads(context_bytes=100, attended_tokens=2048, index_bytes=3)
    assert reads.count_bytes(1, 1, 1000) == 100_000
    assert reads.count_bytes(1, 1, 10_000) == 204_800 + 3 * 7952
    assert reads.count_bytes(2, 2, 10_000) == 409_600 + 3 * 5904


def test_attention_without_a_budget_reads_every_token_and_states_are_read_and_written() -> None:
    assert StepReads(context_bytes=100, state_bytes=50).count_bytes(3, 3, 10_000) == 1_000_000 + 300


def test_a_model_that_runs_one_sequence_after_the_other_reads_its_weights_for_each() -> None:
    plain = StepReads(dense_bytes=1000, is_packed=False)
    assert [plain.count_bytes(streams, streams, 0) for streams in (0, 1, 3)] == [0, 1000, 3000]


reads_of_any_kind = st.builds(
    StepReads,
    dense_bytes=st.integers(1, 2**40),
    expert_bytes=st.integers(0, 2**24),
    experts=st.integers(10, 1024),
    experts_per_token=st.integers(1, 10),
    expert_layers=st.integers(0, 96),
    context_bytes=st.integers(64, 2**16),
    attended_tokens=st.integers(0, 4096),
    index_bytes=st.integers(0, 64),
    state_bytes=st.integers(0, 2**28),
    is_packed=st.booleans(),
)


@settings(deadline=None)
@given(reads_of_any_kind, st.integers(1, 64), st.integers(0, 2**22), st.integers(0, 2**20))
def test_one_more_stream_or_a_longer_context_never_reads_less(
    reads: StepReads, streams: int, context: int, more: int
) -> None:
    now = reads.count_bytes(streams, streams, context)
    assert reads.count_bytes(streams, streams, context + more) >= now * (1 - 1e-12)
    assert reads.count_bytes(streams + 1, streams + 1, context + more) >= now * (1 - 1e-12)
