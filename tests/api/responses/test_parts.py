"""The text of messages and of tools' results."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.responses.parts import join_texts, read_message_text, read_output_text


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("done", "done"),
        ("", ""),
        (None, ""),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "ab"),
        (
            [{"type": "input_text", "text": "Look: "}, {"type": "input_image", "image_url": "data:..."}],
            "Look: [image left out: this server takes text only]",
        ),
        ([{"type": "input_file", "file_id": "f"}], "[file left out: this server takes text only]"),
        ([{"stdout": "a", "outcome": {"exit_code": 0}}], '{"stdout":"a","outcome":{"exit_code":0}}'),
        ({"output": "x", "metadata": {"exit_code": 0}}, '{"output":"x","metadata":{"exit_code":0}}'),
        ([1, 2], "[1,2]"),
        (5, "5"),
    ],
)
def test_a_result_of_any_shape_is_text(output: Any, text: str) -> None:
    assert read_output_text(output) == text


def test_an_answers_parts_are_read_and_what_is_no_text_in_it_is_left_out() -> None:
    parts = [
        {"type": "output_text", "text": "a", "annotations": []},
        {"type": "refusal", "refusal": "No."},
        {"type": "output_image"},
        5,
    ]
    assert read_message_text(parts, "x", is_answer=True) == "aNo."
    assert read_message_text(None, "x", is_answer=True) == ""


def test_texts_are_joined_by_a_blank_line() -> None:
    assert join_texts([{"text": "a"}, {"text": ""}, {"type": "encrypted_content"}, 5, {"text": "b"}]) == "a\n\nb"
    assert join_texts(None) == join_texts("a") == ""
