"""Bands: exact sizes, the right facts for each phase, children under parents, and a plan that does not jump."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from console.widgets.band_view import Drawing, plan_bands
from console.widgets.bands import BandPlace, BandStyle, band_lines, ended_line
from console.widgets.lines import line_width
from console.widgets.phases import eta_s, family, phase_sign
from server.snapshot import StreamView

if TYPE_CHECKING:
    from tests.console.conftest import Samples

BIG = BandStyle("big", 4, 80.0)
SMALL = BandStyle("small", 3, 80.0)


def draw(stream: StreamView, style: BandStyle = BIG, **place: Any) -> list[str]:
    where: dict[str, Any] = {"width": 118, "depth": 0, "is_chosen": False, "more_below": False, **place}
    return ["".join(text for text, _ in line) for line in band_lines(stream, style, BandPlace(**where))]


@pytest.mark.parametrize("width", [58, 60, 78, 80, 100, 118, 142, 198])
@pytest.mark.parametrize("style", [BIG, SMALL], ids=["big", "small"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_band_fills_its_rectangle_in_every_phase(samples: Samples, width: int, style: BandStyle, depth: int) -> None:
    streams = (
        samples.stream(),
        samples.prefill_child(client="日本語クライアント名" * 3),
        samples.prefill_child(phase="waiting", prefill_tps=None, prefill_done_tokens=0, context_tokens=0),
        samples.finished(outcome_detail="client closed the connection in decode"),
        samples.stream(idle_s=9.0, decode_history_tps=(), ttft_s=None, decode_tps=None),
    )
    for stream in streams:
        place = BandPlace(width=width, depth=depth, is_chosen=depth == 0, more_below=True, has_child=True)
        lines = band_lines(stream, style, place)
        assert len(lines) == style.height
        assert {line_width(line) for line in lines} == {width}


def test_decode_tells_rate_output_and_first_token(samples: Samples) -> None:
    shown = "\n".join(draw(samples.stream(), SMALL))
    for fact in ("parent", "opencode", "s-41", "● decode", "58.4 tok/s", "out 1,204 of 8,192", "TTFT 0.42 s", "40 %"):
        assert fact in shown
    assert "context 52,110 of 131,072" in shown
    assert "cached 47,832" in shown


def test_prefill_tells_progress_rate_and_what_is_left(samples: Samples) -> None:
    small = "\n".join(draw(samples.prefill_child(), SMALL))
    big = "\n".join(draw(samples.prefill_child(), BIG))
    assert "1,377 tok/s" in small
    assert "read 18,432 of 44,911" in small
    assert "left 19 s" in small
    assert "26,479 to read · 19 s left" in big
    assert "41 %" in big


def test_a_rate_that_is_not_known_yet_is_no_zero_and_gives_no_eta(samples: Samples) -> None:
    stream = samples.prefill_child(prefill_tps=None)
    assert eta_s(stream) is None
    assert "left -" in "\n".join(draw(stream, SMALL))


def test_a_stream_that_stands_still_says_so(samples: Samples) -> None:
    shown = "\n".join(draw(samples.stream(idle_s=4.2)))
    assert "▲ decode, no token for 4.2 s" in shown
    assert "▲ 4.2 s" in shown
    assert phase_sign(samples.stream(idle_s=0.5))[1] == "decode"


def test_an_ended_stream_is_dim_and_says_how(samples: Samples) -> None:
    place = BandPlace(width=118, depth=0, is_chosen=False, more_below=False)
    lines = band_lines(samples.finished(), BIG, place)
    body = [role for line in lines[1:-1] for text, role in line if text.strip() not in {"", "│"}]
    assert set(body) == {"state-finished"}
    assert "■ finished: length · 3 s ago" in "".join(text for text, _ in lines[0])
    one = "".join(text for text, _ in ended_line(samples.finished(outcome="failed", outcome_detail="boom"), 100))
    assert "✕ failed" in one
    assert "boom" in one


ENDINGS = (
    ("cancelled", "client closed the connection in decode after 12,204 tokens"),
    ("cancelled", "stopped at the server in prefill at 40 %"),
    ("failed", "homebase-console is shutting down, which ended this stream."),
)


@pytest.mark.parametrize(("outcome", "detail"), ENDINGS)
@pytest.mark.parametrize("style", [BIG, SMALL], ids=["big", "small"])
def test_a_band_tells_why_its_stream_ended(samples: Samples, outcome: str, detail: str, style: BandStyle) -> None:
    ended = samples.finished(outcome=outcome, outcome_detail=detail)
    assert any(detail in row for row in draw(ended, style, width=80))
    assert len(draw(ended, style)) == style.height


@pytest.mark.parametrize(("outcome", "detail"), ENDINGS)
@pytest.mark.parametrize("width", [80, 100, 120, 144])
def test_the_line_of_an_ended_stream_keeps_the_reason(samples: Samples, outcome: str, detail: str, width: int) -> None:
    ended = samples.finished(outcome=outcome, outcome_detail=detail, client="opencode/1.18")
    line = ended_line(ended, width)
    shown = "".join(text for text, _ in line)
    assert line_width(line) == width
    assert detail[: 40 if width < 100 else None] in shown
    assert "3 s ago" in shown


def test_no_big_numerals_where_only_ascii_can_be_drawn(samples: Samples) -> None:
    shown = "\n".join(draw(samples.stream(), BandStyle("big", 4, 80.0, plain=True, ascii=True)))
    assert "58.4 tok/s" in shown
    assert "▀" not in shown


def test_children_hang_under_their_parents(samples: Samples) -> None:
    parent, child = samples.stream(), samples.prefill_child()
    other = samples.stream(id="s-50", session="other")
    orphan = samples.prefill_child(id="s-60", session="lost", parent_session="gone")
    order = [(depth, stream.id) for depth, stream in family((child, other, parent, orphan))]
    assert order == [(0, "s-50"), (0, "s-41"), (1, "s-42"), (0, "s-60")]


def test_sessions_that_claim_each_other_do_not_hang_the_screen(samples: Samples) -> None:
    one = samples.stream(id="a", session="1", parent_session="2")
    two = samples.stream(id="b", session="2", parent_session="1")
    own = samples.stream(id="c", session="3", parent_session="3")
    assert {stream.id for _, stream in family((one, two, own))} == {"a", "b", "c"}


def test_a_second_stream_does_not_change_the_size_of_the_first(samples: Samples) -> None:
    one, two = (samples.stream(),), (samples.stream(), samples.prefill_child())
    three = (*two, samples.finished())
    for rows in (10, 12, 20, 22, 34):
        plans = [plan_bands(streams, rows, Drawing()) for streams in (one, two, three)]
        assert all(plan is not None for plan in plans)
        assert len({plan.style.height for plan in plans if plan is not None}) == 1


def test_streams_that_do_not_fit_have_no_plan(samples: Samples) -> None:
    assert plan_bands(samples.many().streams, 22, Drawing()) is None
    assert plan_bands((samples.stream(),), 5, Drawing()) is not None
    assert plan_bands((samples.stream(),), 4, Drawing()) is None


def test_all_bands_have_one_scale(samples: Samples) -> None:
    fast = samples.stream(id="fast", decode_history_tps=(140.0,))
    plan = plan_bands((samples.stream(), fast), 30, Drawing())
    assert plan is not None
    assert plan.style.top_tps == 150.0
