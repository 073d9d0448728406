"""What a step costs: fitted online from measured steps, predicted for any set of streams. Reads no clock itself."""

from __future__ import annotations

import msgspec

from server.events import StepCost

FORGETTING = 0.99
"""Weight that a step keeps at each later one: about the last hundred count. Contexts grow and machines warm up, but a
step is noisy by a tenth and more (two busy cores), so fewer would make predictions jump."""

REFIT_STEPS = 4
"""Steps between two fits. A fit is 60 us of Python, a step of nano 6 ms."""

SWEEPS = 6
"""Passes over the coefficients per fit; each starts where the last one ended, so few are enough."""

FIRST_STEPS = 64
FIRST_SWEEPS = 40
"""While there was little to start from, and after each prefill chunk (the next one must not be too long), a fit goes on
until it has settled: half a millisecond for each such step."""

CONTEXT_UNIT_TOKENS = 4096
PREFILL_UNIT_TOKENS = 64
"""Sizes that make the columns of one magnitude; they only condition the fit."""

TRUSTED_ERROR = 0.15
"""A decode step that was mispredicted by more than this counts for less, in proportion (Huber's weights): what is far
off is nearly always another program's doing, and seldom news. Chunks are few and long; what they say is taken whole."""

ERROR_SHARE = 0.05
"""Weight of the newest step in the running error: about the last twenty count."""


PACE_SHARE = 0.2
PACE_BOUND = 2.0
"""What the newest step says of the machine's pace counts so much, and never more than twice or half of what was
fitted: another program that comes or goes is felt after five steps, where the fit takes a hundred, and a single stall
hardly at all. In simulated prefills of 16,000 tokens beside a decoder, with steps noisy by 5 % on a machine that is
half as fast for 30 steps of every 60, the 95th of 100 steps took 469 ms of 500, and 553 without it. One that changes
every 7 steps is too quick for it: 602 ms, and 528 without."""


class StepLoad(msgspec.Struct, frozen=True):
    """What one step has to do, or would have to."""

    sequences: int = 0
    """Sequences that decode."""
    rows: int = 0
    """Tokens of theirs in the forward: one each, and the drafts."""
    wide_sequences: int = 0
    """Those of them with more than one row, which take another way through the model."""
    context_tokens: int = 0
    """Tokens in their states, which attention may have to read."""
    prefill_tokens: int = 0
    """Length of the prefill chunk."""
    prefill_context_tokens: int = 0
    """Tokens before the chunk."""
    draft_calls: int = 0
    """Calls of the MTP head, one after the other."""
    draft_rows: int = 0
    """Rows that went through it."""

    def columns(self) -> tuple[float, ...]:
        """The measures that the cost is linear in, in the order of `COEFFICIENTS`."""
        chunk = self.prefill_tokens / PREFILL_UNIT_TOKENS
        chunk_middle = self.prefill_context_tokens + self.prefill_tokens / 2
        return (
            chunk,
            chunk * chunk_middle / CONTEXT_UNIT_TOKENS,
            1.0 if chunk else 0.0,
            1.0,
            float(self.sequences),
            float(self.wide_sequences),
            float(self.rows),
            self.context_tokens / CONTEXT_UNIT_TOKENS,
            float(self.draft_calls),
            float(self.draft_rows),
        )


COEFFICIENTS = (
    "prefill_s",
    "prefill_context_s",
    "chunk_s",
    "step_s",
    "sequence_s",
    "wide_s",
    "row_s",
    "context_s",
    "draft_call_s",
    "draft_row_s",
)
"""Fields of `StepCost`. The order decides what a cost goes to before the steps have told two columns apart."""

_SIZE = len(COEFFICIENTS)


def predict_s(cost: StepCost, load: StepLoad) -> float:
    """Seconds that a step with this load takes. 0 while nothing was measured."""
    costs = (getattr(cost, name) * column for name, column in zip(COEFFICIENTS, load.columns(), strict=True))
    return cost.pace_ratio * sum(costs)


class CostModel:
    """Learns from each step. `cost` is what it knows now, frozen.

    Least squares of the *relative* error, with coefficients that cannot be negative: a step of 5 ms counts as much as
    one of 500, a single stall (a kernel compiled, a machine asleep) weighs little, and more work never looks cheaper.
    A coefficient that recent steps say nothing about keeps its value.
    """

    def __init__(self) -> None:
        self.cost = StepCost()
        self._coefficients = [0.0] * _SIZE
        self._gram = [[0.0] * _SIZE for _ in range(_SIZE)]
        self._moments = [0.0] * _SIZE
        self._steps = 0
        self._error = 0.0
        self._pace = 1.0

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Take in a step that ran."""
        if seconds <= 0:
            return
        columns = load.columns()
        error = self._judge(columns, seconds)
        trusted = load.prefill_tokens or self._steps <= 1 / ERROR_SHARE or error <= TRUSTED_ERROR
        weight = 1.0 if trusted else TRUSTED_ERROR / error
        shares = [column / seconds for column in columns]  # of a residual relative to the time
        for row, share in enumerate(shares):
            gram, weighted = self._gram[row], weight * share
            if share:
                self._gram[row] = [FORGETTING * old + weighted * other for old, other in zip(gram, shares, strict=True)]
                self._moments[row] = FORGETTING * self._moments[row] + weighted
            else:
                self._gram[row] = [FORGETTING * old for old in gram]
                self._moments[row] *= FORGETTING
        self._steps += 1
        if self._steps <= FIRST_STEPS or load.prefill_tokens:
            self._fit(FIRST_SWEEPS)
        elif self._steps % REFIT_STEPS == 0:
            self._fit(SWEEPS)
        self._follow_pace(columns, seconds)

    def _judge(self, columns: tuple[float, ...], seconds: float) -> float:
        error = min(1.0, abs(self._pace * self._predict_fitted(columns) - seconds) / seconds)
        self._error += (error - self._error) * (ERROR_SHARE if self._steps > 1 / ERROR_SHARE else 0.5)
        return error

    def _predict_fitted(self, columns: tuple[float, ...]) -> float:
        return sum(c * column for c, column in zip(self._coefficients, columns, strict=True))

    def _follow_pace(self, columns: tuple[float, ...], seconds: float) -> None:
        """Notice how the machine runs now, against what was fitted."""
        fitted = self._predict_fitted(columns)
        if fitted > 0:
            ratio = min(PACE_BOUND, max(1 / PACE_BOUND, seconds / fitted))
            self._pace += PACE_SHARE * (ratio - self._pace)
        self.cost = msgspec.structs.replace(self.cost, pace_ratio=self._pace)

    def _fit(self, sweeps: int) -> None:
        coefficients = self._coefficients
        largest = max(self._gram[index][index] for index in range(_SIZE))
        for _ in range(sweeps):
            for index in range(_SIZE):
                gram = self._gram[index]
                if gram[index] <= largest * 1e-9:  # nothing recent speaks of it
                    continue
                explained = sum(entry * c for entry, c in zip(gram, coefficients, strict=True))
                step = (self._moments[index] - explained) / gram[index]
                coefficients[index] = max(0.0, coefficients[index] + step)
        named = dict(zip(COEFFICIENTS, coefficients, strict=True))
        self.cost = StepCost(**named, pace_ratio=self._pace, error_ratio=self._error, steps=self._steps)
