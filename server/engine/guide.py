"""What an answer may say, token by token: asked by the engine, which does not know what form is being held to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MaskRow = NDArray[np.uint32]
"""One bit for each token id, the lowest first; at least as many as the vocabulary has ids. 1 allows."""


class Guide(Protocol):
    """What one sequence may say. Built anywhere, then used by the engine's thread alone."""

    def look(self, drafted: Sequence[int]) -> Sequence[MaskRow | None]:
        """What may come next, and what after each of the first drafts that may come; None allows anything.

        One row more than drafts that are allowed; a guide may give fewer. Nothing is taken, and a draft never raises
        what would not be raised without it.
        """
        ...

    def take(self, token: int) -> None:
        """A token was emitted."""
        ...


def allows(row: MaskRow | None, token: int) -> bool:
    """Whether a row has a token."""
    return row is None or bool(row[token >> 5] >> np.uint32(token & 31) & np.uint32(1))
