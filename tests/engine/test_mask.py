from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from server.engine.depth import Belief
from server.engine.guide import MaskRow, allows
from server.engine.mask import Mask
from server.engine.request import EngineRequest, Sampling
from server.errors import FormLost, SequenceFailed

if TYPE_CHECKING:
    from tests.engine.conftest import RequestMaker, Rig, Table, TableMaker

VOCAB = 61
STOP = 60
GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=1.2, top_p=0.9, top_k=9, seed=7)
SHAPED = Sampling(temperature=0, frequency_penalty=1.1, logit_bias=tuple((token, 50.0) for token in range(0, 60, 3)))


def build_row(tokens: Sequence[int]) -> MaskRow:
    row = np.zeros(2, np.uint32)
    for token in tokens:
        row[token >> 5] |= np.uint32(1 << (token & 31))
    return row


def choose_by_history(history: tuple[int, ...]) -> MaskRow | None:
    """About a third of all tokens, others after each history; after some of them anything."""
    digest = zlib.crc32(repr(history).encode())
    if digest % 5 == 0:
        return None
    return build_row([token for token in range(VOCAB) if zlib.crc32(bytes([token]), digest) % 3 == 0 or token == 7])


Rule = Callable[[tuple[int, ...]], "MaskRow | None"]


class Ruled:
    """A guide of a rule on what was emitted."""

    def __init__(self, rule: Rule = choose_by_history) -> None:
        self.rule = rule
        self.emitted: tuple[int, ...] = ()
        self.looks = 0

    def look(self, drafted: Sequence[int]) -> list[MaskRow | None]:
        self.looks += 1
        rows = [self.rule(self.emitted)]
        for count, token in enumerate(drafted, start=1):
            if not allows(rows[-1], token):
                break
            rows.append(self.rule((*self.emitted, *drafted[:count])))
        return rows

    def take(self, token: int) -> None:
        assert allows(self.rule(self.emitted), token), "a forbidden token was emitted"
        self.emitted += (token,)


def guide(request: EngineRequest, rule: Rule = choose_by_history) -> EngineRequest:
    return replace(request, guide=Ruled(rule))


def run(table: Table, *requests: EngineRequest) -> dict[str, list[int]]:
    """Each with a fresh guide of its rule."""
    return table.run(*(guide(r, r.guide.rule) if isinstance(r.guide, Ruled) else r for r in requests))


def test_a_row_has_a_bit_for_each_token() -> None:
    row = build_row([0, 31, 32, 60])
    assert [token for token in range(64) if allows(row, token)] == [0, 31, 32, 60]
    assert allows(None, 5)


def test_forbidden_tokens_have_no_score_and_the_others_keep_theirs() -> None:
    mask = Mask(Ruled(lambda history: [build_row([2, 40]), None][len(history)]), VOCAB)
    assert mask.look((40,)) == 1
    scores = mx.arange(2 * VOCAB, dtype=mx.float32).reshape(2, VOCAB)
    first, second = cast("list[list[float]]", mask.apply(scores).tolist())
    assert {token: score for token, score in enumerate(first) if score != -np.inf} == {2: 2.0, 40: 40.0}
    assert second == scores[1].tolist()
    assert mask.look((3,)) == 0


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, SHAPED], ids=["greedy", "sampled", "shaped"])
@pytest.mark.parametrize("mtp", ["auto", 1, 2, 3, 4])
def test_text_is_the_same_at_every_depth_and_beside_siblings(
    table: TableMaker, ask: RequestMaker, mtp: object, sampling: Sampling
) -> None:
    guided = guide(ask("a", 20, 40, sampling))
    free, other = ask("b", 7, 30, sampling), guide(ask("c", 3, 40, sampling, frozenset({7})))
    plain = {request.id: run(table("off"), request)[request.id] for request in (guided, free, other)}
    assert run(table(mtp), guided) == {"a": plain["a"]}
    assert run(table(mtp, wrong_one_in=0), guided, free, other) == plain
    assert run(table("off"), replace(guided, guide=None))["a"] != plain["a"]


@given(seed=st.integers(0, 1000), wrong_one_in=st.integers(0, 4), depth=st.integers(1, 4), size=st.integers(1, 30))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rule_gives_the_same_text_with_and_without_drafts(
    table: TableMaker, ask: RequestMaker, seed: int, wrong_one_in: int, depth: int, size: int
) -> None:
    request = guide(
        ask("a", size, 25, replace(SAMPLED, seed=seed)), lambda history: choose_by_history((seed, *history))
    )
    assert run(table(depth, wrong_one_in), request) == run(table("off"), request)


def test_a_head_that_knows_the_model_is_right_about_guided_text_too(table: TableMaker, ask: RequestMaker) -> None:
    """Its first draft is held to the guide; without that a forbidden one would be refused three times out of four."""
    right = table(1, wrong_one_in=0)
    run(right, guide(ask("a", 5, 60)))
    emissions = right.emissions("a")[1:-1]
    assert sum(e.accepted_tokens for e in emissions) == sum(e.drafted_tokens for e in emissions) > 20


def test_drafts_that_may_not_come_are_not_verified_and_count_as_rejected(table: TableMaker, ask: RequestMaker) -> None:
    guided = table(4, wrong_one_in=0)
    run(guided, guide(ask("a", 5, 60)))
    drafted = sum(e.drafted_tokens for e in guided.emissions("a")[1:])
    verified = sum(rows - 1 for (rows,) in guided.model.passes[1:] if rows <= 5)
    assert verified < drafted
    assert all(e.accepted_tokens <= e.drafted_tokens for e in guided.emissions("a"))


def test_the_depth_learns_from_drafts_that_may_not_come(table: TableMaker, ask: RequestMaker) -> None:
    guided = table(4, wrong_one_in=0)
    guided.add(guide(ask("a", 5, 200)))
    for _ in range(30):
        guided.step()
    belief = Belief()
    for emission in guided.emissions("a")[1:]:
        belief = belief.learn(emission.drafted_tokens, emission.accepted_tokens)
    assert guided.runner._sequences["a"].drafter.belief == belief
    assert belief.rate(2) < 0.7


def test_no_bias_lifts_a_forbidden_token(table: TableMaker, ask: RequestMaker) -> None:
    biased = Sampling(temperature=0, logit_bias=((5, 100.0),))
    tokens = run(table(2), guide(ask("a", 5, 20, biased), lambda history: build_row([8, 9])))["a"]
    assert set(tokens) <= {8, 9}


def test_logprobs_stay_the_models_own(table: TableMaker, ask: RequestMaker) -> None:
    only = [11, 4, 52, 30, 11, 9]
    forced = guide(ask("a", 5, len(only), top_logprobs=2), lambda history: build_row([only[len(history)]]))
    told: dict[object, list[float]] = {}
    for mtp in ("off", 3):
        each = table(mtp)
        assert run(each, forced) == {"a": only}
        told[mtp] = [logprob.logprob for e in each.emissions("a") for logprob in e.logprobs]
    assert told["off"] == pytest.approx(told[3])
    assert min(told["off"]) < -3


@pytest.mark.parametrize("mtp", ["off", 1, 4])
def test_nothing_allowed_ends_that_sequence_alone_after_the_same_tokens(
    table: TableMaker, ask: RequestMaker, mtp: object
) -> None:
    stuck = table(mtp, wrong_one_in=0)
    bad = guide(ask("bad", 5, 40), lambda history: build_row([] if len(history) > 6 else [3, 4, 5]))
    good = ask("good", 12, 40)
    plain = run(table("off"), good)
    got = run(stuck, bad, good)
    assert len(got["bad"]) == 7
    assert got["good"] == plain["good"]
    error = stuck.end("bad").error
    assert error == "No token may come next: the form that this answer must have cannot be kept up."


class Broken(Ruled):
    def __init__(self, place: str, fault: Exception) -> None:
        super().__init__(lambda history: None)
        self.place, self.fault = place, fault

    def look(self, drafted: Sequence[int]) -> list[MaskRow | None]:
        if len(self.emitted) > 4 and self.place == ("drafts" if drafted else "look"):
            raise self.fault
        return super().look(drafted)

    def take(self, token: int) -> None:
        super().take(token)
        if len(self.emitted) > 4 and self.place == "take":
            raise self.fault


@pytest.mark.parametrize("place", ["look", "drafts", "take"])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (ValueError("boom"), "This answer could not be held to its form any further (ValueError)."),
        (SequenceFailed("The grammar is exhausted."), "The grammar is exhausted."),
        (FormLost("Too wide."), "Too wide."),
    ],
)
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_guide_that_raises_ends_its_sequence_and_no_other(
    table: TableMaker, ask: RequestMaker, place: str, fault: Exception, said: str, is_alone: bool
) -> None:
    good = [ask("b", 30, 40), guide(ask("c", 3, 40, SAMPLED))]
    plain = [run(table("off"), request)[request.id] for request in good]
    mixed = table(2)
    mixed.run(*(() if is_alone else good), replace(ask("bad", 10, 40), guide=Broken(place, fault)))
    assert mixed.end("bad").error == said
    assert mixed.end("bad").outcome == "failed"
    assert mixed.end("bad").has_lost_form is isinstance(fault, FormLost)
    assert 3 <= len(mixed.tokens("bad")) < 8
    assert mixed.runner.idle
    if not is_alone:
        assert [mixed.tokens("b"), mixed.tokens("c")] == plain
        assert mixed.states("b") == ["on"]


def test_a_guide_is_not_asked_before_its_prompt_is_read(table: TableMaker, ask: RequestMaker) -> None:
    reading = table(2, chunk=8)
    request = guide(ask("a", 30, 5))
    reading.add(request)
    held = request.guide
    assert isinstance(held, Ruled)
    reading.step()
    reading.step()
    assert held.looks == 0
    reading.finish()
    assert held.emitted == tuple(reading.tokens("a"))


def test_the_engine_goes_on_after_a_guide_has_failed(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    rig.run(replace(ask("bad"), guide=Broken("take", ValueError("boom"))))
    assert rig.outcome("bad") == "failed"
    guided = guide(ask("a", 5, 12), lambda history: build_row([STOP] if len(history) == 9 else [1, 2, 3]))
    assert rig.run(replace(guided, stop_ids=frozenset({STOP})))["a"][-1] == STOP
    assert rig.outcome("a") == "stop"
    assert len(rig.tokens("a")) == 10
