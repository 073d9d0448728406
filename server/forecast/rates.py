"""What each stream's decode rate would be with these streams: measured where that was seen, else by physics. Pure.

A forecast never says that a stream gets quicker when another one comes or when a context grows, whatever noise there
is in what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from server.forecast.measured import FIRST_CONTEXT_TOKENS, MeasuredPoint, find_bucket, usual_tokens_per_step
from server.forecast.prior import Physics, predict_token_s

Basis = Literal["estimate", "measured"]

NEAR_BUCKETS = 1
"""A context of half or twice the length makes a tenth of a step at most: what was measured there counts as measured."""

CONTEXT_SHARE = 0.3
"""How far another bucket of contexts is, where twice the streams are 1 far."""

SHARPNESS = 3.0
LEAST_DISTANCE = 0.03
"""The power of the distance by which a measurement counts less, and what is added to each: a bucket's own measurement
then counts a thousand times as much as its neighbour's."""

LEAST_SHARE, MOST_SHARE = 0.4, 2.5
"""How much better or worse than usual text a stream may be drafted, at most: tokens per step are 1 to 5."""


class StreamLoad(msgspec.Struct, frozen=True):
    """One stream that decodes, or would."""

    context_tokens: int
    tokens_per_step: float | None = None
    """What it gets now, where it has told; None takes what is usual."""


class Forecast(msgspec.Struct, frozen=True):
    """What is to be expected of streams that decode together."""

    rates_tps: tuple[float, ...] = ()
    """Of each stream, in their order."""
    basis: Basis = "estimate"
    """`measured` when so many streams were seen to decode on such contexts lately."""

    @property
    def lowest_tps(self) -> float:
        """Of all streams; infinite for none."""
        return min(self.rates_tps, default=math.inf)


def forecast_rates(physics: Physics, points: Sequence[MeasuredPoint], streams: Sequence[StreamLoad]) -> Forecast:
    """Each stream's decode rate with all of these decoding, and what that rests on.

    The prior of `server.forecast.prior` is scaled by what measurements near by took against it.
    """
    if not streams or not physics.is_known:
        return Forecast()
    context = sum(stream.context_tokens for stream in streams)
    token_s = forecast_token_s(physics, points, len(streams), context)
    usual = usual_tokens_per_step(points)
    rates = tuple(_find_share(stream, usual) / token_s for stream in streams)
    return Forecast(rates, "measured" if has_measured(points, len(streams), context) else "estimate")


def forecast_token_s(physics: Physics, points: Sequence[MeasuredPoint], streams: int, context_tokens: int) -> float:
    """Seconds for each token of a stream of usual text: the longest of what fewer streams and shorter contexts take.

    Within a bucket of contexts the ratio to the prior is one number, and the prior grows: so the ends of the buckets
    below say what the longest of all shorter contexts is.
    """
    ends = [*(FIRST_CONTEXT_TOKENS << bucket for bucket in range(find_bucket(context_tokens))), context_tokens]
    ratios = [_weigh(physics, point) for point in points]
    return max(
        _find_ratio(ratios, number, bucket) * predict_token_s(physics, number, end)
        for number in range(1, streams + 1)
        for bucket, end in enumerate(ends)
    )


def has_measured(points: Sequence[MeasuredPoint], streams: int, context_tokens: int) -> bool:
    """Whether so many streams were seen to decode on contexts like these."""
    bucket = find_bucket(context_tokens)
    return any(
        point.streams == streams and abs(find_bucket(point.context_tokens) - bucket) <= NEAR_BUCKETS for point in points
    )


class _Ratio(msgspec.Struct, frozen=True):
    """One measurement against the prior; numbers of streams and ratios as logarithms."""

    streams: float
    bucket: int
    ratio: float
    steps: float


def _weigh(physics: Physics, point: MeasuredPoint) -> _Ratio:
    ratio = point.token_s / predict_token_s(physics, point.streams, round(point.context_tokens))
    return _Ratio(math.log2(point.streams), find_bucket(point.context_tokens), math.log(ratio), point.steps)


def _find_ratio(ratios: Sequence[_Ratio], streams: int, bucket: int) -> float:
    """What steps took against the prior, near that number of streams and that bucket; 1 where nothing was measured.

    A mean of logarithms, each measurement weighted by how near and how large it is; one that is right there decides.
    """
    total = weights = 0.0
    number = math.log2(streams)
    for each in ratios:
        far = abs(number - each.streams) + CONTEXT_SHARE * abs(bucket - each.bucket)
        weight = each.steps / (LEAST_DISTANCE + far) ** SHARPNESS
        total, weights = total + weight * each.ratio, weights + weight
    return math.exp(total / weights) if weights else 1.0


def _find_share(stream: StreamLoad, usual: float | None) -> float:
    """A stream's tokens against those of usual text: what drafting brings differs from text to text."""
    if stream.tokens_per_step is None or usual is None:
        return 1.0
    return min(MOST_SHARE, max(LEAST_SHARE, stream.tokens_per_step / usual))
