"""Where another server answers, its name is shown; and where no model is served here, that is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from console.widgets.bands import BandPlace, BandStyle, band_lines
from console.widgets.lines import Line, line_width
from console.widgets.stream_detail import detail_lines, server_lines
from console.widgets.title import title_line
from console.widgets.words import empty_lines
from server.policy import UpstreamPolicy
from server.snapshot import Snapshot, UpstreamView
from server.upstreams.health import Health

if TYPE_CHECKING:
    from tests.console.conftest import Samples


def words(lines: list[Line]) -> str:
    return "\n".join("".join(text for text, _ in line) for line in lines)


def view(name: str = "far-away", *models: str) -> UpstreamView:
    return Health().view(UpstreamPolicy(name=name, base_url="http://h/v1", models=models))


def without_model(samples: Samples) -> Snapshot:
    snapshot = samples.empty()
    model = msgspec.structs.replace(snapshot.model, id="", path="", state="none")
    return msgspec.structs.replace(snapshot, model=model, upstreams=(view("far-away", "gpt-*", "big-one"),))


@pytest.mark.parametrize("width", [58, 80, 118])
def test_a_row_names_the_upstream(samples: Samples, width: int) -> None:
    stream = samples.stream(upstream="far-away", model="big-one", context_limit_tokens=0, max_tokens=0)
    place = BandPlace(width=width, depth=0, is_chosen=False, more_below=False)
    lines = band_lines(stream, BandStyle("big", 4, 80.0), place)
    assert {line_width(line) for line in lines} == {width}
    assert " at far-away" in words(lines) or width < 80
    assert "big-one at far-away" in words(detail_lines(stream, 100, 40))


def test_the_panel_tells_how_each_upstream_is(samples: Samples) -> None:
    snapshot = msgspec.structs.replace(samples.empty(), upstreams=(view(), view("a-name-that-is-longer-than-its-room")))
    lines = server_lines(snapshot, 60)
    assert "far-away" in words(lines)
    assert words(lines).count("unused · 0 in flight") == 2
    assert {line_width(line) for line in lines} == {60}


def test_where_no_model_is_served_that_is_said(samples: Samples) -> None:
    snapshot = without_model(samples)
    assert "no local model" in words([title_line(snapshot, "homebase", 0, 120)])
    panel = words(server_lines(snapshot, 60))
    assert "no local model" in panel
    assert "weights" not in panel
    assert '"model": "big-one"' in words(empty_lines(snapshot, False, 100, 30))
