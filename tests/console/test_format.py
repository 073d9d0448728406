"""Numbers, spans, rates and foreign text as the console writes them."""

from __future__ import annotations

import subprocess
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console import format as words


@pytest.mark.parametrize(
    ("rate", "shown"),
    [(None, "-"), (0.0, "0"), (0.25, "0.25"), (9.99, "9.99"), (58.44, "58.4"), (999.4, "999.4"), (1376.6, "1,377")],
)
def test_a_rate_keeps_three_digits_and_unknown_is_no_zero(rate: float | None, shown: str) -> None:
    assert words.format_rate(rate) == shown


@pytest.mark.parametrize(
    ("ratio", "shown"), [(None, "-"), (0.0, "0 %"), (0.001, "<1 %"), (0.398, "40 %"), (0.9999, "99 %"), (1.0, "100 %")]
)
def test_percent_never_claims_full_or_empty_too_early(ratio: float | None, shown: str) -> None:
    assert words.format_ratio(ratio) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (21 * 1024**3, "21.0 GiB"), (200 * 1024**3, "200 GiB")],
)
def test_bytes_take_the_largest_unit(number: int, shown: str) -> None:
    assert words.format_bytes(number) == shown


@pytest.mark.parametrize(
    ("seconds", "clock", "span"),
    [
        (None, "-", "-"),
        (0.017, "0:00", "17 ms"),
        (0.42, "0:00", "0.42 s"),
        (7.0, "0:07", "7.0 s"),
        (19.2, "0:19", "19 s"),
        (125.0, "2:05", "2 min 05 s"),
        (11_564.0, "3:12:44", "192 min 44 s"),
        (200_000.0, "2d 07:33", "3333 min 20 s"),
    ],
)
def test_spans_as_clock_and_with_unit(seconds: float | None, clock: str, span: str) -> None:
    assert words.format_duration(seconds) == clock
    assert words.format_seconds(seconds) == span


@pytest.mark.parametrize(
    ("number", "shown"), [(9, "9"), (1_900_000, "1.9 M"), (35_000_000_000, "35 B"), (1_000, "1.0 k")]
)
def test_parameter_counts(number: int, shown: str) -> None:
    assert words.format_parameters(number) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("opencode/1.2", "opencode/1.2"),
        ("a\x1b[2J", "a\\x1b[2J"),
        ("tab\tnew\nback\r", "tab\\tnew\\nback\\r"),
        ("\u202eflip", "\\u202eflip"),
        ("x\u200dy\ufe0f", "x\\u200dy"),
        ("日本語", "日本語"),
        ("no\u00a0break", "no break"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_foreign_text_cannot_steer_the_terminal(text: str, shown: str) -> None:
    assert words.safe_text(text) == shown


@given(st.text())
def test_no_control_character_survives(text: str) -> None:
    assert all(unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in words.safe_text(text))


@given(st.text(), st.integers(0, 40))
def test_cut_and_pad_have_the_width_they_promise(text: str, width: int) -> None:
    text = words.safe_text(text)
    assert cell_len(words.cut(text, width)) <= width
    assert cell_len(words.cut_middle(text, width)) <= width
    assert cell_len(words.pad(text, width)) == width
    assert cell_len(words.pad_left(text, width)) == width


@given(st.floats(0, 1e7), st.floats(1, 100))
def test_the_scale_is_round_and_never_below_the_value(value: float, floor: float) -> None:
    top = words.nice_max(value, floor)
    assert top >= max(value, floor) * (1 - 1e-6)
    assert top <= max(value, floor) * 2.01


def test_a_scale_survives_nonsense() -> None:
    assert words.nice_max(float("nan")) == 10
    assert words.nice_max(float("inf")) == 10


@given(st.text(alphabet="ab 語", max_size=80), st.integers(4, 30))
def test_wrapped_words_fit(text: str, width: int) -> None:
    assert all(cell_len(line) <= width for line in words.wrap_words(text, width))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:11234/v1"),
        ("0.0.0.0", "http://127.0.0.1:11234/v1"),
        ("::", "http://[::1]:11234/v1"),
        ("mac.local", "http://mac.local:11234/v1"),
    ],
)
def test_the_base_url_is_one_that_a_client_here_can_reach(host: str, url: str) -> None:
    assert words.base_url(host, 11234) == url


def test_the_curl_example_is_one_shell_command_with_valid_json() -> None:
    lines = words.curl_example("http://127.0.0.1:1/v1", "it's a $model", asks_key=True)
    script = "\n".join(lines).replace("curl -N", "printf '%s|'", 1)
    parts = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split("|")
    assert parts[0] == "http://127.0.0.1:1/v1/chat/completions"
    assert parts[4] == "Authorization: Bearer "
    assert '"model": "it\'s a $model"' in parts[6]
    assert '"stream": true' in parts[6]
    assert all(cell_len(line) <= 78 for line in words.curl_example("http://127.0.0.1:11234/v1", "nano", False))
