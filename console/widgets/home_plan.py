"""How the home screen shares its rows and columns. Pure: the terminal's size in, sizes of the parts out.

Sizes depend on the terminal alone, not on how many streams there are, so that nothing jumps when one comes or goes.
"""

from __future__ import annotations

import msgspec

NORMAL_WIDTH = 100
WIDE_WIDTH = 160
LEAST_WIDTH = 60
LEAST_HEIGHT = 16
PANEL_WIDTH = 56


class HomePlan(msgspec.Struct, frozen=True):
    """Rows and columns of each part of the home screen."""

    main_width: int
    """Columns for all but the side panel."""
    panel_width: int
    """Columns of the side panel, 0 when there is none."""
    gauge_rows: int
    plot_rows: int
    """Rows of the plots under their heads; 0 leaves the plots out."""
    refusal_rows: int
    notice_rows: int
    """Most rows for what is unusual; they are taken from the streams only when there is something to say."""
    air: bool
    """True when there is room for a blank line between parts."""

    @property
    def fixed_rows(self) -> int:
        """Rows that are not for streams, the notice left out."""
        plots = self.plot_rows + 1 if self.plot_rows else 0
        return 2 + self.gauge_rows + plots + 1 + self.refusal_rows + (3 if self.air else 0)


def plan_home(width: int, height: int) -> HomePlan:
    """The parts' sizes for a terminal."""
    panel = PANEL_WIDTH if width >= WIDE_WIDTH else 0
    main = width - panel
    if height < 20:
        plots, refusals = 0, 1
    elif height < 30:
        plots, refusals = max(1, min(3, height - 21)), 2
    else:
        plots, refusals = min(9, 3 + (height - 30) // 5), min(8, 3 + (height - 30) // 6)
    return HomePlan(
        main_width=main,
        panel_width=panel,
        gauge_rows=3 if height >= 36 and main >= NORMAL_WIDTH else 2,
        plot_rows=plots,
        refusal_rows=refusals,
        notice_rows=1 if height < 20 else 3 if height < 36 else 5,
        air=height >= 36,
    )


def is_too_small(width: int, height: int) -> bool:
    """True when no screen can be drawn honestly."""
    return width < LEAST_WIDTH or height < LEAST_HEIGHT
