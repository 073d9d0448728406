"""Rates from timestamped counts: of one stream's last tokens, of all steps, and per second for plots.

Pure: no clock is read here; `now` is an argument. A rate is derived when it is asked for and never remembered.
"""

from __future__ import annotations

import math
from collections import deque

RATE_TOKENS = 32
"""A stream's decode rate looks at this many tokens: enough to smooth jitter, few enough to show a change at once."""

RATE_WINDOW_S = 5.0
"""... and never further back than this, so that a rate falls to 0 when tokens stop coming."""

RATE_ROUNDS = 128
"""Acceptance looks at this many decode steps of a stream: its error is 4 points, and a change shows within seconds."""

TOTAL_WINDOW_S = 2.0
"""The rates over all streams look back this far."""


HISTORY_S = 60
"""Seconds of a stream's plot."""

LEAST_PART_S = 0.5
"""What a last part of a second must have to be a value of its own."""

CHUNKS_WINDOW_S = 10.0
"""A prefill rate looks at the chunks of so many seconds: several turns of prompts that share the engine, whose chunks
take up to a second each."""

LEAST_RATED_TOKENS = 32
"""Fewer prompt tokens than this take what any step takes, and tell no rate: a prompt that is taken over from another
stream up to its last token is not read at 30 tok/s."""


class RecentTokens:
    """When one stream's last tokens came. Holds at most 33 emissions."""

    def __init__(self) -> None:
        self._emissions: deque[tuple[float, int]] = deque(maxlen=RATE_TOKENS + 1)

    def add(self, at_s: float, tokens: int) -> None:
        """Note that `tokens` (at least 1) came at `at_s`; times never go back."""
        self._emissions.append((at_s, tokens))

    def rate(self, now: float) -> float | None:
        """Tokens per second over the last 32 tokens or the last 5 s, whichever is shorter; None before there are two.

        The tokens of an emission are spread over the gap before it, and the gap that is still open counts only once
        it is longer than the mean one: a steady stream reads the same between its tokens as at them.
        """
        if len(self._emissions) < 2:
            return None
        start = max(self._start_of_window(), now - RATE_WINDOW_S)
        last = self._emissions[-1][0]
        tokens, emissions = self._count_after(start)
        if last <= start or not tokens:
            return 0.0
        mean_gap = (last - start) / emissions
        return tokens / (max(last, now - mean_gap) - start)

    def _start_of_window(self) -> float:
        """When the oldest of the last 32 tokens began: the emission before it."""
        tokens = 0
        for index in range(len(self._emissions) - 1, 0, -1):
            tokens += self._emissions[index][1]
            if tokens >= RATE_TOKENS:
                return self._emissions[index - 1][0]
        return self._emissions[0][0]

    def _count_after(self, start: float) -> tuple[float, float]:
        """Tokens and emissions after a moment; the emission whose gap spans it counts in part."""
        total = emissions = 0.0
        for index in range(len(self._emissions) - 1, 0, -1):
            at_s, tokens = self._emissions[index]
            if at_s <= start:
                break
            share = share_after(start, self._emissions[index - 1][0], at_s)
            total, emissions = total + tokens * share, emissions + share
        return total, emissions


class RecentChunks:
    """The prefill chunks of one stream, each with the wait for its turn: a rate by the clock on the wall.

    Prompts that take turns share the engine; a chunk's own time would tell each of them the speed of all together.
    """

    def __init__(self) -> None:
        self._chunks: deque[tuple[float, float, int]] = deque()
        self._tokens = 0
        self._spent_s = 0.0

    @property
    def is_empty(self) -> bool:
        """True before the first chunk."""
        return not self._chunks

    def add(self, waited_from_s: float, ended_s: float, tokens: int) -> None:
        """Note a chunk that its stream waited for from one moment and that was in the state at another."""
        self._chunks.append((waited_from_s, ended_s, tokens))
        self._tokens += tokens
        self._spent_s += ended_s - waited_from_s
        while self._chunks[0][1] < ended_s - CHUNKS_WINDOW_S:
            self._chunks.popleft()

    def rate(self, now: float | None) -> float | None:
        """Tokens per second over the chunks of the last 10 s; None before there are enough of them to tell.

        The wait for the next chunk counts once it is longer than the mean one. `now` is None when none will come: then
        it is the rate of them all.
        """
        if self._tokens < LEAST_RATED_TOKENS or self._spent_s <= 0:
            return None
        if now is None:
            return self._tokens / self._spent_s
        spent = sum(ended - waited_from for waited_from, ended, _ in self._chunks)
        spent += max(0.0, now - self._chunks[-1][1] - spent / len(self._chunks))
        return sum(tokens for _, _, tokens in self._chunks) / spent if spent > 0 else None


class RecentRounds:
    """What one stream's last decode steps drafted, kept and emitted."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[int, int, int]] = deque(maxlen=RATE_ROUNDS)

    def add(self, drafted: int, accepted: int, emitted: int) -> None:
        """Note a step that verified `drafted` tokens, kept the first `accepted` of them and emitted `emitted`."""
        self._rounds.append((drafted, accepted, emitted))

    @property
    def depth(self) -> int | None:
        """Drafts of the newest step; None before there was one."""
        return self._rounds[-1][0] if self._rounds else None

    def acceptance(self) -> float | None:
        """Accepted over drafted (0..1); None when nothing was drafted lately."""
        drafted = sum(drafted for drafted, _, _ in self._rounds)
        return sum(accepted for _, accepted, _ in self._rounds) / drafted if drafted else None

    def acceptance_by_depth(self) -> tuple[float, ...]:
        """For each depth from 1 on: drafts of it that were kept, over all of it, those behind a rejected one too."""
        deepest = max((drafted for drafted, _, _ in self._rounds), default=0)
        return tuple(self._acceptance_at(depth) for depth in range(1, deepest + 1))

    def tokens_per_step(self) -> float | None:
        """Emitted per step; None before the first decode step."""
        return sum(emitted for _, _, emitted in self._rounds) / len(self._rounds) if self._rounds else None

    def _acceptance_at(self, depth: int) -> float:
        judged = [accepted >= depth for drafted, accepted, _ in self._rounds if drafted >= depth]
        return sum(judged) / len(judged)


class RecentSteps:
    """Tokens that the last steps moved, to be read as one rate over all streams."""

    def __init__(self) -> None:
        # The length only guards against a flood of tiny steps: 2 s of 1 ms steps fit twice.
        self._steps: deque[tuple[float, float, int]] = deque(maxlen=4096)

    def add(self, at_s: float, seconds: float, tokens: int) -> None:
        """Note a step that ended at `at_s` after `seconds`."""
        while self._steps and self._steps[0][1] <= at_s - 2 * TOTAL_WINDOW_S:
            self._steps.popleft()
        self._steps.append((at_s - seconds, at_s, tokens))

    def rate(self, now: float, busy: bool) -> float:
        """Tokens of the last 2 s, per second.

        While work is under way the window ends where the last step ended, for as long as that step took: a step of
        3 s must not read as a standstill only because its successor is still running.
        """
        if not self._steps:
            return 0.0
        began, ended, _ = self._steps[-1]
        end = max(ended, now - (ended - began)) if busy else now
        start = end - TOTAL_WINDOW_S
        total = 0.0
        for began, ended, tokens in reversed(self._steps):
            if ended <= start:
                break
            total += tokens * share_after(start, began, ended)
        return total / TOTAL_WINDOW_S


class SecondCounts:
    """Tokens in each whole second since `start`, for the last `keep` seconds."""

    def __init__(self, start: float, keep: int) -> None:
        self._start = start
        self._keep = keep
        self._counts: deque[float] = deque()
        self._first = 0
        """The second that `_counts[0]` is of."""

    def add(self, began_s: float, ended_s: float, tokens: int) -> None:
        """Spread tokens evenly over the time in which they were made."""
        began, ended = began_s - self._start, ended_s - self._start
        if ended < 0 or not tokens:
            return None
        last = math.floor(ended)
        if began >= last:  # nearly every step lies within one second
            return self._add_to(last, tokens)
        for second in range(max(0, math.floor(began), last - self._keep), last + 1):
            share = share_after(second, began, ended) - share_after(second + 1, began, ended)
            self._add_to(second, tokens * share)
        return None

    def history(self, now: float) -> tuple[float, ...]:
        """One value per whole second that is over, oldest first; the second under way is left out, it would dip."""
        over = max(0, math.floor(now - self._start))
        self._forget_before(over - self._keep)
        counts = list(self._counts)[: max(0, over - self._first)]
        return tuple(counts) + (0.0,) * (min(over, self._keep) - len(counts))

    def under_way(self, now: float) -> tuple[float, float]:
        """Tokens of the second that is not over yet, and how much of it is."""
        over = math.floor(now - self._start)
        place = over - self._first
        return (self._counts[place] if 0 <= place < len(self._counts) else 0.0), now - self._start - over

    def _add_to(self, second: int, tokens: float) -> None:
        self._forget_before(second + 1 - self._keep)
        if second < self._first:
            return
        while self._first + len(self._counts) <= second:
            self._counts.append(0.0)
        self._counts[second - self._first] += tokens

    def _forget_before(self, second: int) -> None:
        while self._first < second:
            self._first += 1
            if self._counts:
                self._counts.popleft()
            else:
                self._first = second


class DecodeHistory:
    """One stream's tokens by the second, from its first one on; each is spread over the gap before it."""

    def __init__(self) -> None:
        self._counts: SecondCounts | None = None
        self._last_s = 0.0

    def add(self, at_s: float, tokens: int) -> None:
        """Note that `tokens` came at `at_s`. The first come of the prompt: with them the time begins."""
        if self._counts is None:
            self._counts = SecondCounts(at_s, HISTORY_S)
        else:
            self._counts.add(self._last_s, at_s, tokens)
        self._last_s = at_s

    def history(self, now: float) -> tuple[float, ...]:
        """Tokens per second, in each whole second of the last 60 that is over."""
        return self._counts.history(now) if self._counts else ()

    def close(self) -> tuple[tuple[float, ...], float | None]:
        """The same once no more will come, with the part of a second at the end; and the mean of all that.

        A part shorter than half a second joins the second before: a rate over a few milliseconds would tell nothing.
        So no mean is above the highest value.
        """
        if self._counts is None:
            return (), None
        tokens, part_s = self._counts.under_way(self._last_s)
        spans = [(count, 1.0) for count in self._counts.history(self._last_s)]
        if spans and part_s < LEAST_PART_S:
            spans[-1] = spans[-1][0] + tokens, 1.0 + part_s
        elif part_s:
            spans.append((tokens, part_s))
        spans = spans[-HISTORY_S:]
        if not spans:
            return (), None
        mean = sum(tokens for tokens, _ in spans) / sum(seconds for _, seconds in spans)
        return tuple(tokens / seconds for tokens, seconds in spans), mean


def share_after(moment: float, began: float, ended: float) -> float:
    """The part (0..1) of the span `began`..`ended` that lies after a moment; an instant lies after it or not."""
    if ended <= moment:
        return 0.0
    return 1.0 if began >= moment else (ended - moment) / (ended - began)
