"""How many tokens to draft for a stream: as many as bring most tokens per second. Pure: times and draws are arguments.

A stream believes in an acceptance rate for each depth (given that the draft before was accepted), learned from its
own rounds; what a step would take at each depth comes from the cost model.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MAX_DEPTH = 4
"""Drafts per step at most. The fifth is right half as often as the second (nano's head, greedy), and costs as much."""

PRIOR_RATE = 0.6
PRIOR_WEIGHT = 2.0
"""What is believed before a stream has told, worth two drafts: nano's and the field's heads accept 0.55 to 0.8."""

MEMORY = 0.985
"""Weight that a draft keeps at each later one of its depth: about the last sixty count. Text changes as it goes."""

FADING = 0.995
"""The same for a depth that is not tried: old evidence fades, so that deeper drafts are tried again some day."""

REVIEW_ROUNDS = 4
"""Rounds between two choices: one round says little."""

LEAST_GAIN = 0.04
"""A change must promise this much more tokens per second at least, or streams would change depth all the time."""

PROBE_ROUNDS = 4
FIRST_PATIENCE_ROUNDS = 24
LONGEST_PATIENCE_ROUNDS = 768
"""At depth 0 a stream drafts one deep for four rounds after 24 without, then after 48, and so on up to 768: even when
drafting only costs, the probes cost under a hundredth."""


LOOK_ASIDE_ROUNDS = 8
"""Every eighth round goes one deeper or shallower than chosen, by turns: what is never done is never known again. It
costs under a hundredth, and a choice from 20 noisy steps at the start would else stand for good."""


class Belief(msgspec.Struct, frozen=True):
    """Drafts tried and accepted at each depth, the last ones counting most."""

    tried: tuple[float, ...] = (0.0,) * MAX_DEPTH
    accepted: tuple[float, ...] = (0.0,) * MAX_DEPTH

    def rate(self, depth: int) -> float:
        """The chance that the draft at this depth, from 1, is accepted once those before it were."""
        prior = PRIOR_RATE if depth == 1 else self.rate(depth - 1)  # what is unknown goes on like what is known
        index = depth - 1
        return (self.accepted[index] + PRIOR_WEIGHT * prior) / (self.tried[index] + PRIOR_WEIGHT)

    def expected_tokens(self) -> tuple[float, ...]:
        """Tokens that a step emits on average, for each depth from 0 on."""
        tokens, chance = [1.0], 1.0
        for depth in range(1, MAX_DEPTH + 1):
            chance *= self.rate(depth)
            tokens.append(tokens[-1] + chance)
        return tuple(tokens)

    def learn(self, drafted: int, accepted: int) -> Belief:
        """After a round: the draft after the accepted ones was rejected, and those behind it never judged."""
        tried, kept = list(self.tried), list(self.accepted)
        for index in range(MAX_DEPTH):
            judged = index < min(drafted, accepted + 1)
            weight = MEMORY if judged else FADING
            tried[index] = tried[index] * weight + judged
            kept[index] = kept[index] * weight + (index < accepted)
        return Belief(tuple(tried), tuple(kept))


class Choice(msgspec.Struct, frozen=True):
    """The depth that a stream drafts at, and when that is looked at again."""

    depth: int = 2
    """Begins in the middle, so that two depths are learned at once."""
    why_not: str = ""
    """At depth 0: what drafting would bring."""
    review_in_rounds: int = REVIEW_ROUNDS
    patience_rounds: int = FIRST_PATIENCE_ROUNDS
    """How long the next rest at depth 0 is."""
    is_probe: bool = False
    """True while drafting only to see whether it has begun to pay."""

    def tick(self) -> Choice:
        """A round has run."""
        return msgspec.structs.replace(self, review_in_rounds=self.review_in_rounds - 1)


def look_aside(depth: int, rounds: int) -> int:
    """The depth for the round after so many rounds, where `depth` is the chosen one: now and then its neighbour."""
    if depth == 0 or rounds % LOOK_ASIDE_ROUNDS != LOOK_ASIDE_ROUNDS - 1:
        return depth
    deeper = (rounds // LOOK_ASIDE_ROUNDS) % 2 == 0
    return min(MAX_DEPTH, depth + 1) if deeper else max(1, depth - 1)


def choose_depth(
    now: Choice, belief: Belief, step_s: Sequence[float], others_tokens: float, doubt: float = 0.0
) -> Choice:
    """The depth to go on with, asked once `now` is due (`review_in_rounds` is 0).

    `step_s` is what a step takes with this stream at each depth from 0 on, everyone else as they are; `others_tokens`
    is what the same step brings the others. What counts is tokens per second of all, which for one stream is its own.
    A gain below `doubt` (0..1) is taken for an error of `step_s`.
    """
    if now.depth == 0:
        return Choice(1, "", PROBE_ROUNDS, now.patience_rounds, is_probe=True)
    rates = [(others_tokens + own) / s for own, s in zip(belief.expected_tokens(), step_s, strict=True)]
    settled = 0 if now.is_probe else now.depth
    best = max(range(len(rates)), key=rates.__getitem__)
    if rates[best] < rates[settled] * (1 + max(LEAST_GAIN, doubt)):
        best = settled
    if best:
        return Choice(best)
    rest = now.patience_rounds
    drafting = max(rates[1:])
    why_not = f"drafting would bring {drafting:.3g} tok/s, decoding plainly brings {rates[0]:.3g}"
    return Choice(0, why_not, rest, min(2 * rest, LONGEST_PATIENCE_ROUNDS))
