"""How much memory there is for streams, and what one takes: arithmetic that admission and the engine share. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

GIB = 2**30
MACHINE_SHARE = 0.75
"""Of a machine's RAM that is taken when no device names a limit of its own: about what macOS gives a GPU by default."""
WORK_SHARE = 0.05
LEAST_WORK_BYTES = 32 * 2**20
"""Of the budget, kept for a step's own arrays and for buffers on their way into larger ones: a prefill chunk of 2,048
tokens of nano takes 25 MiB more than what it leaves."""
GROWTH_SHARE = 8
"""Buffers are made longer by an eighth at a time, so that much of them may be empty."""
GROWTH_TOKENS = 512
"""The same while they are short."""
FIXED_COPIES = 2
"""Recurrent states while a step is verified: the one before it and the one after."""


class StreamCost(msgspec.Struct, frozen=True):
    """What one stream's context takes, by the shapes of the model that is loaded; the drafting head's with it."""

    fixed_bytes: int = 0
    """Whatever its length: recurrent states and windows."""
    token_bytes: int = 0
    """For each token: keys, values, and the indexer's."""

    def at(self, tokens: int) -> int:
        """Bytes that a stream of so many tokens may take, empty ends of buffers included."""
        rows = tokens + tokens // GROWTH_SHARE + GROWTH_TOKENS
        return FIXED_COPIES * self.fixed_bytes + self.token_bytes * rows

    def tokens_within(self, room_bytes: int) -> int:
        """The most tokens of a stream that takes no more; 0 when it does not fit at all."""
        if not self.token_bytes:
            return 0 if self.at(0) > room_bytes else 2**62
        rows = (room_bytes - FIXED_COPIES * self.fixed_bytes) // self.token_bytes - GROWTH_TOKENS
        return max(0, (rows * GROWTH_SHARE) // (GROWTH_SHARE + 1))


class MemoryPlan(msgspec.Struct, frozen=True):
    """The budget, and what of it is left for streams."""

    budget_bytes: int = 0
    """What MLX may hold in all; 0 when nothing is known, and then nothing is refused."""
    model_bytes: int = 0
    """Weights; they are there as long as the process."""
    stream: StreamCost = StreamCost()

    @property
    def work_bytes(self) -> int:
        """Kept for a step's own arrays; no stream may have it."""
        return max(LEAST_WORK_BYTES, int(self.budget_bytes * WORK_SHARE))

    @property
    def room_bytes(self) -> int:
        """For the contexts of all streams and, as far as they leave it, for the prefix cache."""
        return max(0, self.budget_bytes - self.work_bytes - self.model_bytes)

    @property
    def most_tokens(self) -> int | None:
        """The longest stream that fits by itself; None when nothing limits it."""
        return self.stream.tokens_within(self.room_bytes) if self.budget_bytes else None


def find_budget(memory_budget_gib: float, device_bytes: int) -> int:
    """`[engine] memory_budget_gib` in bytes; a negative one takes what the device allows."""
    return device_bytes if memory_budget_gib < 0 else int(memory_budget_gib * GIB)


def say_bytes(count: int, cut: Callable[[float], int] = round) -> str:
    """An amount for a sentence: `12.5 MiB`, `0.43 GiB`, `24.0 GiB`.

    `cut` is math.ceil for what is needed and math.floor for what is there, so that too little never looks like enough.
    The unit changes before there are three digits: agents take 429 and 503 for the answer of a cloud service.
    """
    unit, name, digits = next(row[1:] for row in _UNITS if count < row[0])
    scale = 10**digits
    return f"{cut(count / unit * scale) / scale:,.{digits}f} {name}"


_UNITS = (
    (GIB // 10, 2**20, "MiB", 1),
    (GIB, GIB, "GiB", 2),
    (100 * GIB, GIB, "GiB", 1),
    (2**10 * GIB, 2**10 * GIB, "TiB", 2),
    (2**63, 2**10 * GIB, "TiB", 1),
)
"""Below how many bytes an amount is said in which unit, with its name and decimals."""
