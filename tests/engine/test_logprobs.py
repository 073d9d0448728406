from __future__ import annotations

import math
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest

from server.engine.logprobs import measure_logprobs
from server.engine.request import EngineRequest, Sampling
from server.events import TokenLogprob

if TYPE_CHECKING:
    from tests.engine.conftest import RequestMaker, Table, TableMaker

LOGITS = ((0.5, 2.0, -1.0, 2.0, 0.0), (3.0, -math.inf, 1.0, 0.0, -2.0))


def log_softmax(row: tuple[float, ...]) -> list[float]:
    whole = math.log(sum(math.exp(logit) for logit in row))
    return [logit - whole for logit in row]


def measure(tokens: list[int], top: int) -> tuple[TokenLogprob, ...]:
    return measure_logprobs(mx.array(LOGITS), mx.array(tokens), top).read()


def test_they_are_those_of_the_softmax_best_first_of_equals_the_lowest_id() -> None:
    first, second = measure([0, 2], 3)
    own = [log_softmax(row) for row in LOGITS]
    assert first.logprob == pytest.approx(own[0][0], abs=1e-6)
    assert second.logprob == pytest.approx(own[1][2], abs=1e-6)
    assert [token for token, _ in first.top] == [1, 3, 0]
    assert [token for token, _ in second.top] == [0, 2, 3]
    assert [value for _, value in second.top] == pytest.approx([own[1][0], own[1][2], own[1][3]], abs=1e-6)


def test_without_alternatives_only_the_token_is_told() -> None:
    assert [each.top for each in measure([1, 0], 0)] == [(), ()]


def test_no_more_alternatives_than_the_vocabulary_has() -> None:
    assert [len(each.top) for each in measure([1, 0], 20)] == [5, 5]


def told(table: Table, request_id: str) -> list[TokenLogprob]:
    for event in table.emissions(request_id):
        assert len(event.logprobs) == len(event.token_ids)
    return [each for event in table.emissions(request_id) for each in event.logprobs]


SAMPLINGS = [
    Sampling(temperature=0),
    Sampling(temperature=0.8, top_p=0.9, seed=4),
    Sampling(temperature=0, frequency_penalty=2.0, logit_bias=((9, 6.0),)),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "shaped"])
@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_drafting_changes_no_logprob(table: TableMaker, ask: RequestMaker, sampling: Sampling, top: int) -> None:
    request, sibling = ask("a", 9, 25, sampling, top_logprobs=top), ask("b", 3, 30)
    plain = table("off")
    plain.run(request)
    for depth in (1, 2, 3, 4):
        drafting = table(depth)
        drafting.run(request, sibling)
        assert told(drafting, "a") == told(plain, "a")
        assert not any(event.logprobs for event in drafting.emissions("b"))
    assert all(len(each.top) == top for each in told(plain, "a"))


def test_they_are_the_models_own_whatever_bends_the_draw(table: TableMaker, ask: RequestMaker) -> None:
    forced = table(2)
    forced.run(ask("a", 9, 12, Sampling(temperature=0, logit_bias=((9, 100.0),)), top_logprobs=2))
    assert forced.tokens("a") == [9] * 12
    for each in told(forced, "a"):
        assert each.logprob < each.top[0][1] < 0 or each.top[0][0] == 9
    assert sum(each.logprob < each.top[0][1] for each in told(forced, "a")) > 6


def test_a_stop_inside_an_accepted_run_cuts_them_too(table: TableMaker, ask: RequestMaker) -> None:
    plain = table("off").run(ask("a", 5, 30))["a"]
    stopped = table(4, wrong_one_in=0)
    request = EngineRequest(
        "a", ask("a", 5).prompt_ids, 30, Sampling(temperature=0), frozenset({plain[7]}), top_logprobs=1
    )
    stopped.run(request)
    assert [each.top[0][0] for each in told(stopped, "a")] == plain[: plain.index(plain[7]) + 1]
