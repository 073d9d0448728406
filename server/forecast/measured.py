"""What decode steps took lately, by how many streams decoded on contexts of which sum. Bounded; reads no clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from server.events import StepDone

MOST_POINTS = 96
"""Kept at most; the one that was seen longest ago goes. Six numbers of streams on contexts up to a million tokens."""

FORGETTING = 0.98
"""Weight that a step keeps at each later one like it: about the last fifty count."""

LEAST_STEPS = 16
"""Steps that make a measurement: a mean of fewer jumps by a tenth."""

LATELY_S = 1800.0
"""Older ones are of another hour: a machine warms up, and other programs come and go."""

FIRST_CONTEXT_TOKENS = 512
"""Sums up to this are one bucket; from there on each is twice the one before."""

LONGEST_PAUSE_RATIO = 1.5
"""Between two steps lies what the engine does besides, which streams wait for too. More than half a step is no such
thing: nobody decoded then."""


class MeasuredPoint(msgspec.Struct, frozen=True):
    """What a bucket holds: means over its last steps."""

    streams: int
    context_tokens: float
    """Sum over the streams."""
    step_s: float
    """By the clock: with what lies between two steps."""
    tokens_per_step: float
    """Of each stream."""
    steps: float
    """Weight of what it is made of; at most 50."""

    @property
    def token_s(self) -> float:
        """Seconds for each token of a stream, on average."""
        return self.step_s / self.tokens_per_step


class _Bucket:
    def __init__(self) -> None:
        self.steps = self.seconds = self.tokens = self.context = 0.0
        self.seen_s = 0.0

    def add(self, seconds: float, tokens: int, context: int, at_s: float) -> None:
        self.steps = FORGETTING * self.steps + 1
        self.seconds = FORGETTING * self.seconds + seconds
        self.tokens = FORGETTING * self.tokens + tokens
        self.context = FORGETTING * self.context + context
        self.seen_s = at_s


class MeasuredSteps:
    """Fed with every step; keeps those in which streams did nothing but decode."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[int, int], _Bucket] = OrderedDict()
        self._last_s: float | None = None
        """When the last step ended."""
        self.version = 0
        """Rises with every step that is kept."""

    def add(self, step: StepDone) -> None:
        """Note a step. One with a prefill chunk in it tells nothing of decoding."""
        last_s, self._last_s = self._last_s, step.at_s
        if step.prefill_tokens or not step.decoding or step.seconds <= 0 or not step.decode_tokens:
            return
        elapsed = step.seconds if last_s is None else step.at_s - last_s
        seconds = elapsed if step.seconds < elapsed <= LONGEST_PAUSE_RATIO * step.seconds else step.seconds
        key = (step.decoding, find_bucket(step.context_tokens))
        bucket = self._buckets.setdefault(key, _Bucket())
        self._buckets.move_to_end(key)
        bucket.add(seconds, step.decode_tokens, step.context_tokens, step.at_s)
        if len(self._buckets) > MOST_POINTS:
            self._buckets.popitem(last=False)
        self.version += 1

    def points(self, now_s: float) -> tuple[MeasuredPoint, ...]:
        """All that can be relied on, in no order."""
        return tuple(
            MeasuredPoint(
                streams=streams,
                context_tokens=bucket.context / bucket.steps,
                step_s=bucket.seconds / bucket.steps,
                tokens_per_step=bucket.tokens / bucket.steps / streams,
                steps=bucket.steps,
            )
            for (streams, _), bucket in self._buckets.items()
            if bucket.steps >= LEAST_STEPS and now_s - bucket.seen_s <= LATELY_S
        )


def find_bucket(context_tokens: float) -> int:
    """The bucket of a sum of contexts: 0 up to 512 tokens, 1 up to 1,024, 2 up to 2,048 and so on."""
    bucket = 0
    while context_tokens > FIRST_CONTEXT_TOKENS << bucket:
        bucket += 1
    return bucket


def usual_tokens_per_step(points: Sequence[MeasuredPoint]) -> float | None:
    """Tokens that a stream got in a step, on average over everything that was measured."""
    steps = sum(point.steps for point in points)
    return sum(point.tokens_per_step * point.steps for point in points) / steps if steps else None
