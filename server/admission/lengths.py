"""How long answers usually are, and how fast they came: agents ask for far more tokens than they use.

Bounded; remembers numbers only.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from statistics import median

from server.admission.clients import name_product
from server.snapshot import StreamView

CLIENTS_KEPT = 64
"""Programs whose answers are remembered; the one that has been silent longest goes first."""

LENGTHS_KEPT = 200
"""Answers that are remembered of each: the last ones, since a program's work changes through a day."""

LEAST_KNOWN = 3
"""A median of fewer says nothing."""

RATES_KEPT = 16
"""Streams whose rates are remembered, for one that has none yet; few, since a machine's load changes."""

UNKNOWN_TOKENS = 2048
"""What a stream is taken to have before it at most, where nothing is known of its like."""


Answer = tuple[int, bool]
"""Tokens of one, and whether it ended by itself and not by max_tokens."""


class Lengths:
    """The lengths of the last answers of each program that asks."""

    def __init__(self) -> None:
        self._by_client: OrderedDict[str, deque[Answer]] = OrderedDict()
        self._prefill_tps: deque[float] = deque(maxlen=RATES_KEPT)
        self._decode_tps: deque[float] = deque(maxlen=RATES_KEPT)

    @property
    def prefill_tps(self) -> float | None:
        """Of the last streams, each with what ran beside it; None before any."""
        return median(self._prefill_tps) if self._prefill_tps else None

    @property
    def decode_tps(self) -> float | None:
        """The same of decoding."""
        return median(self._decode_tps) if self._decode_tps else None

    def note(self, stream: StreamView) -> None:
        """Remember an answer that came to its own end; one that was cut short tells nothing of lengths."""
        for rates, rate in ((self._prefill_tps, stream.prefill_tps), (self._decode_tps, stream.decode_tps)):
            if rate:
                rates.append(rate)
        if stream.outcome not in ("stop", "length") or not stream.completion_tokens:
            return
        client, answer = _name(stream), (stream.completion_tokens, stream.outcome == "stop")
        self._by_client.setdefault(client, deque(maxlen=LENGTHS_KEPT)).append(answer)
        self._by_client.move_to_end(client)
        if len(self._by_client) > CLIENTS_KEPT:
            self._by_client.popitem(last=False)

    def expect_left(self, stream: StreamView) -> float:
        """Tokens that a stream is still likely to generate: to the median of those that were longer than it is now.

        Its own client's tell more than anybody's. Never more than its max_tokens leave.
        """
        now, most = stream.completion_tokens, max(0, stream.max_tokens - stream.completion_tokens)
        for answers in (self._by_client.get(_name(stream), ()), self._all()):
            if (usual := find_median(answers, now)) is not None:
                return min(most, usual - now)
        return min(most, UNKNOWN_TOKENS)

    def expect_tokens(self) -> float:
        """Of an answer that has not begun, whoever asks."""
        return find_median(self._all(), 0) or UNKNOWN_TOKENS

    def _all(self) -> list[Answer]:
        return [answer for answers in self._by_client.values() for answer in answers]


def find_median(answers: Iterable[Answer], above: int) -> int | None:
    """The length that half of those reach that come above so many tokens; None where too few are known.

    One that max_tokens ended says only that it would have been at least so long (Kaplan and Meier, 1958).
    """
    longer = sorted((answer for answer in answers if answer[0] > above), key=lambda answer: (answer[0], not answer[1]))
    if sum(is_own_end for _, is_own_end in longer) < LEAST_KNOWN:
        return None
    share = 1.0
    for place, (length, is_own_end) in enumerate(longer):
        share *= 1 - is_own_end / (len(longer) - place)
        if share < 0.5 + 1e-9:
            return length
    return longer[-1][0]


def _name(stream: StreamView) -> str:
    return name_product(stream.key, stream.client).lower()
