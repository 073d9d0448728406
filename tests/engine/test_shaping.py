from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from server.engine.request import Sampling
from server.engine.shaping import Shaper, build_shaper

if TYPE_CHECKING:
    from tests.engine.conftest import RequestMaker, TableMaker

VOCAB = 9
LOGITS = (0.5, -1.25, 2.0, 0.0, -0.5, 3.0, 1.0, -2.0, 0.25)


def shape_by_hand(sampling: Sampling, prompt: list[int], generated: list[int]) -> list[float]:
    """The definition, one token at a time."""
    counts, bias = Counter(generated), dict(sampling.logit_bias)
    shaped: list[float] = []
    for token, logit in enumerate(LOGITS):
        score = logit + bias.get(token, 0.0)
        if token in prompt or token in counts:
            score = score / sampling.repetition_penalty if score > 0 else score * sampling.repetition_penalty
        score -= sampling.frequency_penalty * counts[token]
        shaped.append(score - sampling.presence_penalty * (token in counts))
    return shaped


def shape(shaper: Shaper, rows: int, drafted: list[int] | list[mx.array]) -> list[list[float]]:
    return cast("list[list[float]]", shaper.shape(mx.array([LOGITS] * rows), drafted).tolist())


tokens = st.integers(0, VOCAB - 1)
samplings = st.builds(
    Sampling,
    frequency_penalty=st.sampled_from([0.0, 0.5, 2.0, -2.0]),
    presence_penalty=st.sampled_from([0.0, 1.5, -1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 2.0, 0.5]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, -1.0, 4.0, 100.0]), max_size=3).map(
        lambda biases: tuple(biases.items())
    ),
)


@given(samplings, st.lists(tokens, min_size=1, max_size=6), st.lists(tokens, max_size=12), st.lists(tokens, max_size=4))
@settings(max_examples=80, deadline=None)
def test_each_row_sees_what_came_before_it_and_drafts_leave_no_trace(
    sampling: Sampling, prompt: list[int], generated: list[int], drafted: list[int]
) -> None:
    shaper = Shaper(sampling, prompt, VOCAB)
    for token in generated:
        shaper.note(token)
    rows = len(drafted) + 1
    expected = [shape_by_hand(sampling, prompt, generated + drafted[:row]) for row in range(rows)]
    for got, wanted in zip(shape(shaper, rows, drafted), expected, strict=True):
        assert got == pytest.approx(wanted, abs=1e-4)
    (last,) = shape(shaper, 1, [mx.array([token]) for token in drafted])  # as the head draws, one row after all drafts
    assert last == pytest.approx(expected[-1], abs=1e-4)
    assert shape(shaper, 1, [])[0] == pytest.approx(expected[0], abs=1e-4)


@given(samplings, st.lists(tokens, max_size=8), st.lists(tokens, min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_rows_shaped_together_are_bit_for_bit_those_shaped_alone(
    sampling: Sampling, generated: list[int], drafted: list[int]
) -> None:
    together, alone = Shaper(sampling, [1], VOCAB), Shaper(sampling, [1], VOCAB)
    for token in generated:
        together.note(token)
        alone.note(token)
    rows = shape(together, len(drafted) + 1, drafted)
    for row, token in zip(rows, [*drafted, None], strict=True):
        assert shape(alone, 1, []) == [row]
        if token is not None:
            alone.note(token)


def test_nothing_asked_for_builds_nothing() -> None:
    assert build_shaper(Sampling(temperature=0.5, top_k=3, seed=1), (1, 2), VOCAB) is None
    for asked in ({"frequency_penalty": 0.1}, {"presence_penalty": -1.0}, {"repetition_penalty": 1.1}):
        assert build_shaper(replace(Sampling(), **asked), (1, 2), VOCAB) is not None
    assert build_shaper(Sampling(logit_bias=((3, 1.0),)), (1, 2), VOCAB) is not None


@pytest.mark.parametrize("penalty", [5e-324, 0.0, -3.0])
def test_a_repetition_penalty_of_next_to_nothing_keeps_scores_finite(penalty: float) -> None:
    shaped = shape(Shaper(Sampling(repetition_penalty=penalty), [5], VOCAB), 1, [])[0]
    assert shaped[5] == pytest.approx(300.0)


PENALTIES = {
    "frequency": Sampling(temperature=0, frequency_penalty=2.0),
    "presence": Sampling(temperature=0, presence_penalty=-2.0),
    "repetition": Sampling(temperature=0, repetition_penalty=2.0),
    "bias": Sampling(temperature=0, logit_bias=((3, 5.0), (40, -100.0))),
    "forced": Sampling(temperature=0, logit_bias=((3, 100.0),), frequency_penalty=1.5),
    "all": Sampling(
        frequency_penalty=1.7, presence_penalty=-0.9, repetition_penalty=1.6, logit_bias=((7, 4.0),), top_p=0.9, seed=5
    ),
}


@pytest.mark.parametrize("sampling", PENALTIES.values(), ids=PENALTIES)
@pytest.mark.parametrize("mtp", ["auto", 1, 2, 3, 4])
def test_shaped_text_with_drafting_is_the_text_without(
    table: TableMaker, ask: RequestMaker, mtp: object, sampling: Sampling
) -> None:
    requests = [ask(f"p{prompt}", prompt, 40, sampling) for prompt in (1, 7, 20)]
    plain = table("off").run(*requests)
    for wrong_one_in in (0, 2, 5):
        assert table(mtp, wrong_one_in).run(requests[1]) == {"p7": plain["p7"]}
        assert table(mtp, wrong_one_in).run(*requests, ask("other", 9, 30))["p20"] == plain["p20"]


@given(samplings, st.integers(0, 1), st.integers(1, 4), st.integers(0, 4), st.integers(1, 30))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_shaping_gives_the_same_text_at_any_depth(
    table: TableMaker, ask: RequestMaker, sampling: Sampling, temperature: int, depth: int, wrong: int, prompt: int
) -> None:
    asked = replace(sampling, temperature=float(temperature), seed=11)
    request, sibling = ask("a", prompt, 25, asked), ask("b", 5, 12, replace(asked, frequency_penalty=2.0))
    both = table("off").run(request, sibling)
    assert table("off").run(request)["a"] == both["a"]
    assert table(depth, wrong).run(request, sibling) == both


@pytest.mark.parametrize("name", PENALTIES)
def test_the_head_drafts_under_the_same_shaping(table: TableMaker, ask: RequestMaker, name: str) -> None:
    perfect = table(3, wrong_one_in=0)
    perfect.run(ask("a", 5, 41, PENALTIES[name]))
    assert {(e.drafted_tokens, e.accepted_tokens) for e in perfect.emissions("a")[1:]} == {(3, 3)}


def test_a_penalty_is_felt(table: TableMaker, ask: RequestMaker) -> None:
    forced = Sampling(temperature=0, logit_bias=((3, 90.0), (4, 75.0)))
    assert table().run(ask("a", 5, 6, forced))["a"].count(3) == 6
    tokens = table().run(ask("a", 5, 40, replace(forced, frequency_penalty=2.0)))["a"]
    assert {3, 4} <= set(tokens)
    assert 3 <= tokens.count(3) - tokens.count(4) <= 13  # 5 to 25 apart, and 2 closer at each


def test_a_banned_token_never_comes(table: TableMaker, ask: RequestMaker) -> None:
    plain = table().run(ask("a", 5, 60))["a"]
    banned = Sampling(temperature=0, logit_bias=tuple((token, -100.0) for token in set(plain[:20])))
    assert not set(table().run(ask("a", 5, 60, banned))["a"]) & set(plain[:20])


def test_a_bias_outside_of_the_vocabulary_never_reaches_the_model(table: TableMaker, ask: RequestMaker) -> None:
    refusing = table()
    refusing.run(ask("a", 5, 6, Sampling(logit_bias=((61, 1.0),))), ask("b", 5, 6, Sampling(logit_bias=((-1, 1.0),))))
    for name in "ab":
        error = refusing.end(name).error
        assert error is not None
        assert "logit_bias" in error
    assert refusing.model.forwards == []
