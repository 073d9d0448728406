"""How long answers usually are, and how fast they came: agents ask for far more tokens than they use.

Bounded; remembers numbers only.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from statistics import median

import msgspec

from server.admission.clients import name_product
from server.admission.place import Place
from server.snapshot import StreamView

CLIENTS_KEPT = 64
"""Programs whose answers are remembered; the one that has been silent longest goes first."""

LENGTHS_KEPT = 200
"""Answers that are remembered of each: the last ones, since a program's work changes through a day."""

LEAST_KNOWN = 3
"""A median of fewer answers says nothing."""

RATES_KEPT = 16
"""Streams whose rates are remembered, for one that has none yet; few, since a machine's load changes."""

UNKNOWN_TOKENS = 256
"""What a stream is taken to have before it, where nothing is known of its like: an agent's turn is mostly a call of a
tool and a sentence."""


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
        """Tokens that a stream is still likely to generate: to the median of those that were longer than it is now."""
        return self.expect_lefts(stream, (0.5,))[0]

    def expect_lefts(self, stream: StreamView, shares: Iterable[float]) -> list[float]:
        """The same for other shares than half: each is that of its like that would have ended by then.

        Its own program's tell more than anybody's. Never more than its max_tokens leave.
        """
        return self._expect_lefts(_name(stream), stream.completion_tokens, stream.max_tokens, shares)

    def expect_output(self, place: Place, max_tokens: int) -> float:
        """Tokens of an answer that has not begun and may have so many."""
        return self._expect_lefts(name_product(place.key, place.client).lower(), 0, max_tokens, (0.5,))[0]

    def expect_tokens(self, shares: Iterable[float] = (0.5,)) -> list[float]:
        """Of an answer that has not begun, whoever asks, for each share."""
        return [_read(find_ends(self._all(), 0), 0, share) for share in shares]

    def _expect_lefts(self, name: str, now: int, max_tokens: int, shares: Iterable[float]) -> list[float]:
        most, own = max(0, max_tokens - now), self._by_client.get(name, ())
        ends = find_ends(own if len(own) >= LEAST_KNOWN else self._all(), now)
        return [min(most, _read(ends, now, share)) for share in shares]

    def _all(self) -> list[Answer]:
        return [answer for answers in self._by_client.values() for answer in answers]


class Ends(msgspec.Struct, frozen=True):
    """Where those ended that came above so many tokens."""

    steps: tuple[tuple[int, float], ...] = ()
    """A length, and the share of them that have ended by then."""
    longest: int = 0
    """What any is known to have reached, whether it ended there or was cut."""

    def find(self, share: float) -> int | None:
        """The length by which such a share has ended; None when that is beyond what is known."""
        return next((length for length, ended in self.steps if ended > share - 1e-9), None)


def find_ends(answers: Collection[Answer], above: int) -> Ends:
    """How answers that come above so many tokens end; nothing where too few answers are known at all.

    One that max_tokens ended says only that it would have been at least so long (Kaplan and Meier, 1958).
    """
    if len(answers) < LEAST_KNOWN:
        return Ends()
    longer = sorted((answer for answer in answers if answer[0] > above), key=lambda answer: (answer[0], not answer[1]))
    steps, share = list[tuple[int, float]](), 1.0
    for place, (length, is_own_end) in enumerate(longer):
        share *= 1 - is_own_end / (len(longer) - place)
        if is_own_end:
            steps.append((length, 1 - share))
    return Ends(tuple(steps), max(length for length, _ in answers))


def _read(ends: Ends, now: int, share: float) -> float:
    """Tokens to that share's end. Beyond what is known, half of all are taken to go on for as much again as is known.

    So does one whose like were all cut by max_tokens: it then reaches its own, unless that is far beyond.
    """
    if (length := ends.find(share)) is not None:
        return length - now
    known, ended = (max(ends.longest, now), ends.steps[-1][1] if ends.steps else 0.0)
    rest = math.log2((1 - ended) / (1 - share)) if share > ended else 0.0
    return max(0, known - now if ends.longest else 0) + max(UNKNOWN_TOKENS, known) * rest


def _name(stream: StreamView) -> str:
    return name_product(stream.key, stream.client).lower()
