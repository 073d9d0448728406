"""One sequence's drafting: whether it drafts, how deep, and why not. Engine thread only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from server.engine.cost import predict_s
from server.engine.depth import MAX_DEPTH, Belief, Choice, choose_depth, look_aside
from server.engine.drafting import DraftTrail
from server.engine.scheduler import Need, sum_load
from server.events import StepCost
from server.models.cache import MtpHead

MtpSetting = Literal["auto", "off", 1, 2, 3, 4]
"""`[engine] mtp`."""

OFF_BY_POLICY = "[engine] mtp is off"
MISSED = "drafting was off for a part of this stream, which the head has not read"

CALIBRATION_STEPS = 4 * (MAX_DEPTH + 1)
"""Decode steps of an engine that go through all depths, so that the cost model can tell what each of them takes: so
many for each number of streams, each stream at a depth of its own, or the cost of a draft and of a call of the head
could not be told apart."""


class Drafter:
    """What one sequence drafts. Its trail is None from the moment on at which it cannot draft any more."""

    def __init__(self) -> None:
        self.trail: DraftTrail | None = None
        self.belief = Belief()
        self._choice = Choice()
        self._rounds = 0
        self._fixed: int | None = None
        """A depth that is not this stream's own choice: the policy's, or one to be measured."""
        self._why_not = ""
        self._has_head = True
        self._told = ""

    @property
    def state(self) -> str:
        """`on`, or `off: ` and why."""
        resting = self._fixed is None and self._choice.depth == 0
        why_not = self._why_not or (self._choice.why_not if resting else "")
        return f"off: {why_not}" if why_not else "on"

    @property
    def depth(self) -> int:
        """Drafts per step that are wanted now."""
        if self.trail is None:
            return 0
        return look_aside(self._choice.depth, self._rounds) if self._fixed is None else self._fixed

    @property
    def is_due(self) -> bool:
        """Whether the depth is to be chosen anew."""
        return self.trail is not None and self._choice.review_in_rounds <= 0

    def begin(self, head: MtpHead | None, setting: MtpSetting, no_head_because: str) -> None:
        """Before the first token is run."""
        self._has_head = head is not None
        if head is None:
            self._why_not = no_head_because
        elif setting == "off":
            self._why_not = OFF_BY_POLICY
        else:
            self.trail = DraftTrail(head.build_state())

    @property
    def has_missed_nothing(self) -> bool:
        """Whether another sequence could go on from here and draft as it would have by itself."""
        return self.trail is not None or not self._has_head or self._why_not == OFF_BY_POLICY

    def fork(self, next_id: int) -> Drafter:
        """A drafter for a sequence that parts from this one here, with `next_id` after what the model has read."""
        drafter = Drafter()
        drafter._why_not, drafter._has_head = self._why_not, self._has_head
        drafter.trail = None if self.trail is None else self.trail.fork(next_id)
        return drafter

    def end(self, why_not: str) -> None:
        """No drafts from here on; what the head remembers is dropped."""
        self.trail, self._why_not = None, why_not

    def follow(self, setting: MtpSetting) -> None:
        """The policy of now. One that comes on again finds streams that the head has not followed."""
        if setting == "off" and self._has_head:
            self.end(OFF_BY_POLICY)
        elif setting != "off" and self._why_not == OFF_BY_POLICY:
            self._why_not = MISSED
        self._fixed = setting if isinstance(setting, int) else None

    def calibrate(self, depth: int) -> None:
        """Draft just so deep in the next round, to learn what it costs."""
        self._fixed = depth

    def choose(self, need: Need, others: Iterable[Need], others_tokens: float, cost: StepCost) -> None:
        """Choose the depth anew, everyone else as they are."""
        rest = tuple(others)
        at_depths = (msgspec.structs.replace(need, draft_tokens=depth) for depth in range(MAX_DEPTH + 1))
        step_s = tuple(predict_s(cost, sum_load((*rest, at_depth))) for at_depth in at_depths)
        if all(seconds > 0 for seconds in step_s):
            doubt = cost.error_ratio / 2
            self._choice = choose_depth(self._choice, self.belief, step_s, others_tokens, doubt)

    def learn(self, drafted: int, accepted: int) -> None:
        """A round has run."""
        self.belief = self.belief.learn(drafted, accepted)
        self._choice = self._choice.tick()
        self._rounds += 1

    def expect_tokens(self) -> float:
        """Tokens that its next step brings, on average."""
        return self.belief.expected_tokens()[0 if self.trail is None else self._fixed or self._choice.depth]

    def take_news(self) -> str | None:
        """The state in words if it was not told yet."""
        if self.state == self._told:
            return None
        self._told = self.state
        return self._told


def choose_depths(drafters: Sequence[tuple[Drafter, Need]], setting: MtpSetting, cost: StepCost, decoded: int) -> None:
    """Settle what each decoding sequence drafts in the next step.

    `decoded` counts the engine's decode steps with as many streams as now.
    """
    for place, (drafter, need) in enumerate(drafters):
        if setting == "auto" and drafter.trail is not None:
            if decoded < CALIBRATION_STEPS:
                drafter.calibrate((decoded + 2 * place) % (MAX_DEPTH + 1))
            elif drafter.is_due:
                others = [(other, its) for other, its in drafters if other is not drafter]
                tokens = sum(other.expect_tokens() for other, _ in others)
                drafter.choose(need, (its for _, its in others), tokens, cost)
