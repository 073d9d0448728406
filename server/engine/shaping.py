"""Bends a sequence's scores before they are filtered: a bias for single tokens, penalties for what was said before.

Row i of a verification is the model's after the newest token and the drafts before i, so it is shaped by the counts
that plain decoding would have there: text is the same at every depth. Drafts count for the one call that they are
given to and are never kept; what was emitted is counted once, at the next call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import mlx.core as mx

from server.engine.request import Sampling

LEAST_REPETITION_PENALTY = 0.01
"""A smaller one is raised to this: a score of 40 is 4,000 then, and beyond it scores would leave float32 in the end."""


class Shaper:
    """Bias and penalties of one sequence. The counts are rows (V,) on the device: 1 MB at V = 248,320."""

    def __init__(self, sampling: Sampling, prompt_ids: Sequence[int], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._frequency, self._presence = sampling.frequency_penalty, sampling.presence_penalty
        self._repetition = max(LEAST_REPETITION_PENALTY, sampling.repetition_penalty)
        self._bias: mx.array | None = None
        if sampling.logit_bias:
            ids, values = zip(*sampling.logit_bias, strict=True)
            self._bias = mx.zeros((vocab_size,)).at[mx.array(ids)].add(mx.array(values))
        self._in_prompt: mx.array | None = None
        if self._repetition != 1:
            self._in_prompt = mx.zeros((vocab_size,)).at[mx.array(sorted(set(prompt_ids)))].add(1.0)
        self._counts = mx.zeros((vocab_size,)) if _penalizes(sampling) else None
        self._uncounted: list[int] = []

    def note(self, token: int) -> None:
        """A token was emitted."""
        if self._counts is not None:
            self._uncounted.append(token)

    def shape(self, logits: mx.array, drafted: Sequence[int] | Sequence[mx.array] = ()) -> mx.array:
        """The scores (rows, V) to draw from, of logits (rows, V) float32. Lazy.

        The last row is the one after everything emitted and all of `drafted`, each row before it after one draft
        fewer. Drafts are token ids, or arrays (1,) of them that have not been read yet.
        """
        if self._bias is not None:
            logits = logits + self._bias
        if self._counts is None:
            return logits
        counts = self._count(logits.shape[0], drafted)  # (rows, V) or (1, V)
        if self._in_prompt is not None:
            bent = mx.where(logits > 0, logits / self._repetition, logits * self._repetition)
            logits = mx.where(counts + self._in_prompt > 0, bent, logits)
        if self._frequency:
            logits = logits - self._frequency * counts
        return logits - self._presence * (counts > 0) if self._presence else logits

    def _count(self, rows: int, drafted: Sequence[int] | Sequence[mx.array]) -> mx.array:
        """How often each token was generated before each row (rows, V); (1, V) when it is the same for all."""
        assert self._counts is not None
        if self._uncounted:
            self._counts = self._counts.at[mx.array(self._uncounted)].add(1.0)
            self._uncounted = []
        if not drafted:
            return self._counts[None]
        fewer = len(drafted) - rows + 1  # drafts before the first row
        seen = [(row, place) for row in range(rows) for place in range(fewer + row)]
        at_rows, places = mx.array([row for row, _ in seen]), mx.array([place for _, place in seen])
        counts = mx.broadcast_to(self._counts, (rows, self._vocab_size))
        return counts.at[at_rows, _join(drafted)[places]].add(1.0)


def build_shaper(sampling: Sampling, prompt_ids: Sequence[int], vocab_size: int) -> Shaper | None:
    """What bends the scores of a sequence; None when nothing is asked for, so that it costs nothing."""
    return Shaper(sampling, prompt_ids, vocab_size) if sampling.logit_bias or _penalizes(sampling) else None


def _penalizes(sampling: Sampling) -> bool:
    return bool(sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1)


def _join(drafted: Iterable[int] | Iterable[mx.array]) -> mx.array:
    """All drafts as one array of ids."""
    return mx.concatenate([each if isinstance(each, mx.array) else mx.array([each]) for each in drafted])
