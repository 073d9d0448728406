"""The plot says what was measured: as SVG that parses, and as bars of at most 80 columns."""

from __future__ import annotations

from xml.etree import ElementTree

from console.bench.fan_out import Case, Mode, Outcome, Turn
from console.bench.plot import COLORS, HEAD, PANEL, WIDTH, draw_bars, draw_svg

SVG = "{http://www.w3.org/2000/svg}"


def build(mode: Mode, streams: int, *rates: float, context: int = 2048) -> Outcome:
    return Outcome(
        Case(mode, context, streams), tuple(Turn(completion_tokens=101, decode_s=100 / rate) for rate in rates), 1.0
    )


BOTH = [build("off", 1, 60), build("off", 4, 20, 16), build("on", 1, 60), build("on", 4, 40, 32)]


def list_dots(svg: str, mode: Mode) -> list[tuple[float, float]]:
    """Where a half's medians are; the last dot is the legend's."""
    circles = [circle.attrib for circle in ElementTree.fromstring(svg).iter(f"{SVG}circle")]
    return [(float(dot["cx"]), float(dot["cy"])) for dot in circles if dot["fill"] == COLORS[mode]][:-1]


def test_medians_stand_where_they_belong():
    svg = draw_svg(BOTH, 30.0, "Fan-out")
    off, on = list_dots(svg, "off"), list_dots(svg, "on")
    assert len(off) == len(on) == 2
    assert off[0][1] == on[0][1], "the same rate at one stream"
    assert off[1][1] > on[1][1] > on[0][1], "lower rates stand lower"
    floor = next(line for line in ElementTree.fromstring(svg).iter(f"{SVG}line") if "stroke-dasharray" in line.attrib)
    assert off[1][1] > float(floor.attrib["y1"]) > on[1][1], "18 is below the floor of 30, 36 above"


def test_each_context_has_a_panel_and_nothing_is_drawn_outside():
    svg = draw_svg([*BOTH, build("off", 2, 5, context=8192)], 30.0, "<nano> & others")
    root = ElementTree.fromstring(svg)
    assert root.attrib["height"] == str(HEAD + 2 * PANEL)
    said = [text.text for text in root.iter(f"{SVG}text")]
    assert {"<nano> & others", "2,048 tokens of context", "8,192 tokens of context"} <= set(said)
    for circle in root.iter(f"{SVG}circle"):
        assert 0 < float(circle.attrib["cx"]) < WIDTH
        assert HEAD < float(circle.attrib["cy"]) < HEAD + 2 * PANEL


def test_a_fan_out_that_failed_draws_no_dot():
    svg = draw_svg([build("off", 1, 60), Outcome(Case("on", 2048, 1), (Turn(fault="no"),), 1.0)], 30.0, "")
    assert len(list_dots(svg, "off")) == 1
    assert list_dots(svg, "on") == []


def test_bars_are_as_long_as_the_slowest_stream_is_quick():
    lines = draw_bars(BOTH, 30.0).splitlines()[1:]
    lengths = [line.count("█") for line in lines]
    assert lengths[0] == lengths[2] == max(lengths)
    assert lengths[1] < lengths[3] < lengths[0]
    assert [line.split()[-1] for line in lines] == ["60.0", "16.0", "60.0", "32.0"]
    assert len({line.index("│") for line in lines}) == 1
    assert all(len(line) <= 80 for line in lines)


def test_bars_can_do_without_block_characters():
    assert draw_bars(BOTH, 30.0, ascii_only=True).isascii()
