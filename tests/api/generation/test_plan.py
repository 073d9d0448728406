from __future__ import annotations

from typing import Any

import msgspec
import pytest

from server.api.generation.plan import check_model, exceed_context, plan_max_tokens
from server.errors import ContextLengthExceeded, InvalidRequest, UnknownModel
from server.snapshot import ModelView


@pytest.fixture
def model(rig: Any) -> ModelView:
    return msgspec.structs.replace(rig.read_model(), effective_context_limit_tokens=1000, path="/models/Nano-Folder")


@pytest.mark.parametrize("asked", [None, "", "org/nano", "nano", "Nano-Folder"])
def test_the_served_model_goes_by_its_id_its_last_part_its_folder_or_nothing(model: ModelView, asked: Any) -> None:
    check_model(asked, model)


@pytest.mark.parametrize("asked", ["gpt-4o", "NANO", "other/nano", "org/", "no-such-model-xyz"])
def test_any_other_name_is_unknown_and_the_answer_lists_what_there_is(model: ModelView, asked: str) -> None:
    with pytest.raises(UnknownModel, match="available: 'org/nano'"):
        check_model(asked, model)


def test_a_name_without_end_is_cut_in_the_answer(model: ModelView) -> None:
    with pytest.raises(UnknownModel) as caught:
        check_model("x" * 1_000_000, model)
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("prompt_tokens", "asked", "planned"),
    [(10, None, 990), (10, 5, 5), (10, 990, 990), (10, 4000, 990), (999, None, 1), (999, 1, 1)],
)
def test_output_is_what_was_asked_or_the_room_that_is_left(
    model: ModelView, prompt_tokens: int, asked: int | None, planned: int
) -> None:
    assert plan_max_tokens(prompt_tokens, asked, "max_tokens", model) == planned


@pytest.mark.parametrize("prompt_tokens", [1000, 1001, 5000])
def test_a_prompt_without_room_for_one_token_is_refused_with_both_numbers(model: ModelView, prompt_tokens: int) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        plan_max_tokens(prompt_tokens, 1, "max_tokens", model)
    assert f"{prompt_tokens:,}" in caught.value.message
    assert "1,000" in caught.value.message


@pytest.mark.parametrize("key", ["engine.memory_budget_gib", "policy.max_context_tokens"])
@pytest.mark.parametrize("at_least", [False, True])
def test_a_limit_that_is_not_the_models_own_is_named_beside_what_the_model_has(
    model: ModelView, key: str, at_least: bool
) -> None:
    lowered = msgspec.structs.replace(model, context_limit_set_by=key)
    told = exceed_context(2000, lowered, at_least=at_least).message
    assert "This model's maximum context length is 1,000 tokens, but the prompt has" in told
    assert ("at least 2,000" in told) is at_least
    assert f"({key}) sets this limit; the model itself has 4,096." in told
    assert "itself" not in exceed_context(2000, model).message
    assert exceed_context(2000, model).message.endswith(
        "Shorten the prompt; an answer needs room for one token at least."
    )


@pytest.mark.parametrize("asked", [4097, 10**9, 10**30])
def test_an_output_that_no_prompt_leaves_room_for_is_refused(model: ModelView, asked: int) -> None:
    with pytest.raises(InvalidRequest, match="4,096") as caught:
        plan_max_tokens(10, asked, "max_completion_tokens", model)
    assert caught.value.param == "max_completion_tokens"
