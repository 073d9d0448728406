from __future__ import annotations

from typing import Any

import pytest

from server.api.generation.logit_bias import read_logit_bias
from server.errors import InvalidRequest


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, ()),
        ({}, ()),
        ({"0": 0}, ((0, 0.0),)),
        ({"99": -100, "7": 100, "10": 0.5}, ((7, 100.0), (10, 0.5), (99, -100.0))),
    ],
)
def test_a_bias_is_read_in_the_order_of_the_ids(given: Any, read: Any) -> None:
    assert read_logit_bias(given, 100) == read


@pytest.mark.parametrize("key", ["100", "-1", "007", "+5", " 5", "5.0", "1_0", "", "hello", "٣", "²", "9" * 5000])
def test_a_key_that_is_no_id_of_the_vocabulary_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest, match="from 0 to 99") as caught:
        read_logit_bias({"5": 1, key: 1}, 100)
    assert caught.value.param == "logit_bias"
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("bias", [100.1, -101, 10**400, "5", None, True, [], {}])
def test_a_bias_that_is_no_number_in_the_range_is_refused(bias: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"from -100 to 100.*for token 5") as caught:
        read_logit_bias({"5": bias}, 100)
    assert caught.value.param == "logit_bias"
