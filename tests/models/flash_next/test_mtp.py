"""The drafting head against two references, primed whole and by chunks, drafting alone and beside others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from server.models.cache import DraftSegment, Segment, ServedModel

TOLERANCE = 1e-4

Serve = Callable[[str], ServedModel]
Refer = Callable[[str], dict[str, npt.NDArray[Any]]]

CASES = [(name, length) for name in ("tiny", "tiny2") for length in (1, 7, 64, 200)]


class Pair:
    """One sequence in a model and in its head."""

    def __init__(self, model: ServedModel) -> None:
        assert model.mtp is not None
        self.model, self.head = model, model.mtp
        self.state, self.drafting = model.build_state(), model.mtp.build_state()

    def read(self, tokens: Sequence[int]) -> tuple[npt.NDArray[Any], mx.array]:
        """Run tokens through the model: logits of all rows, and streams."""
        forward = self.model.forward([Segment(self.state, tuple(tokens), "all")])
        mx.eval(forward.logits[0], forward.streams[0], self.state.arrays())
        return np.array(forward.logits[0]), forward.streams[0]

    def draft(self, streams: mx.array, tokens: Sequence[int] | mx.array) -> tuple[npt.NDArray[Any], mx.array]:
        """Run rows through the head: logits and stream of the last."""
        ids = tokens if isinstance(tokens, mx.array) else tuple(tokens)
        forward = self.head.forward([DraftSegment(self.drafting, streams, ids)])
        mx.eval(forward.logits[0], forward.streams[0], self.drafting.arrays())
        return np.array(forward.logits[0]), forward.streams[0]

    def chain(self, streams: mx.array, tokens: Sequence[int]) -> list[npt.NDArray[Any]]:
        """Draft three deep after rows of the model's, and forget all but these: logits (1, V) of each depth."""
        logits, stream = self.draft(streams, tokens)
        committed, depths = self.drafting.checkpoint(), [logits]
        while len(depths) < 3:
            logits, stream = self.draft(stream, [int(depths[-1].argmax())])
            depths.append(logits)
        self.drafting.rollback(committed)
        return depths


def check_close(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= TOLERANCE


def known_of(references: Refer, name: str) -> dict[str, npt.NDArray[Any]]:
    return {**references(f"{name}_transformers"), **references(f"{name}_mlxvlm_mtp"), **references(f"{name}_torch_mtp")}


@pytest.mark.parametrize(("name", "length"), CASES)
def test_every_priming_row_equals_the_reference(served: Serve, references: Refer, name: str, length: int) -> None:
    known, pair = known_of(references, name), Pair(served(name))
    _, streams = pair.read(known[f"ids_{length}"].tolist())
    stream = streams[:0]
    for row, token in enumerate(known[f"mtp_prefill_tokens_{length}"].tolist()):
        logits, stream = pair.draft(streams[row : row + 1], [token])
        check_close(logits[0], known[f"mtp_prefill_logits_{length}"][row])
        assert pair.drafting.offset == row + 1
    check_close(np.array(stream.flatten()), known[f"mtp_prefill_stream_{length}"])


@pytest.mark.parametrize("chunk", [3, 64, 1000])
@pytest.mark.parametrize(("name", "length"), CASES)
def test_drafts_and_verification_equal_the_reference_however_the_head_is_primed(
    served: Serve, references: Refer, name: str, length: int, chunk: int
) -> None:
    known, pair = known_of(references, name), Pair(served(name))
    ids, greedy = known[f"ids_{length}"].tolist(), known[f"greedy_{length}"].tolist()
    waiting: list[mx.array] = []  # the last row of a chunk waits for the first token of the next
    for start in range(0, length, chunk):
        part = ids[start : start + chunk]
        if waiting:
            pair.draft(waiting.pop(), part[:1])
        _, streams = pair.read(part)
        if len(part) > 1:
            pair.draft(streams[:-1], part[1:])
        waiting.append(streams[-1:])
    depths = pair.chain(waiting.pop(), greedy[:1])
    check_close(np.concatenate(depths), known[f"mtp_draft_logits_{length}"])
    drafted = [int(logits.argmax()) for logits in depths]
    assert drafted == known[f"mtp_draft_tokens_{length}"].tolist()
    assert pair.drafting.offset == length
    verified, _ = pair.read([greedy[0], *drafted])
    check_close(verified, known[f"verify_logits_{length}"])


@pytest.mark.parametrize(("name", "length"), CASES)
def test_the_second_round_equals_the_reference(served: Serve, references: Refer, name: str, length: int) -> None:
    known, pair = known_of(references, name), Pair(served(name))
    ids, greedy = known[f"ids_{length}"].tolist(), known[f"greedy_{length}"].tolist()
    _, streams = pair.read(ids)
    drafted = [int(logits.argmax()) for logits in pair.chain(streams, [*ids[1:], greedy[0]])]
    committed = pair.state.checkpoint()
    _, streams = pair.read([greedy[0], *drafted])
    pair.state.rollback(committed, 1)
    assert (pair.state.offset, pair.drafting.offset) == (length + 1, length)
    depths = pair.chain(streams[:1], greedy[1:2])
    assert [int(logits.argmax()) for logits in depths] == known[f"mtp_round2_tokens_{length}"].tolist()


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
@pytest.mark.parametrize(("name", "length"), CASES)
def test_chains_after_partial_acceptance_equal_the_reference(
    served: Serve, references: Refer, name: str, length: int, accepted: int
) -> None:
    known, pair = known_of(references, name), Pair(served(name))
    ids, greedy = known[f"ids_{length}"].tolist(), known[f"greedy_{length}"].tolist()
    _, streams = pair.read(ids)
    rows, tokens, done = streams, [*ids[1:], greedy[0]], 0
    while done < 8:
        depths = pair.chain(rows, tokens)
        check_close(np.concatenate(depths), known[f"mtp_chain_logits_{length}"][done])
        assert pair.drafting.offset == pair.state.offset == length + done
        offered = [*greedy[done : done + accepted + 1], *[5] * (3 - accepted)]  # right as far as it is accepted
        point = pair.state.checkpoint()
        _, streams = pair.read(offered)
        pair.state.rollback(point, accepted + 1)
        rows, tokens = streams[: accepted + 1], greedy[done + 1 : done + accepted + 2]
        done += accepted + 1
