"""Which of the drafted tokens a sequence keeps. Pure.

Every row's token is drawn from the *model's* filtered distribution, by the same dice that the token of that index has
without drafting (`sampler`: a key from the seed and the index, nothing else); a draft counts only by being equal to
it. What is emitted is therefore, draw by draw, what plain decoding emits: the same distribution, and for a seed the
same tokens, at every depth. A rejected draft is replaced by a token drawn under the condition of being another one,
which is the residual of speculative sampling for a draft that is certain of itself (Leviathan et al. 2023, q a
single token: accepted with probability p(draft), else p without it, renormalised).

The draft is drawn by those dice too, from the head's distribution under the same filters: two draws that share their
noise agree more often than the best guess is right (Daliri, Musco and Suresh, "Coupling without Communication and
Drafter-Invariant Speculative Decoding", 2024: at least (1 - d) / (1 + d) for a total variation d, where a draft of its
own dice and the residual reach 1 - d). Of nano's first drafts (4 prompts, 200 tokens each, 2026-11-30) were accepted:

| sampling | shared dice | best guess | own dice and residual |
|---|---|---|---|
| temperature 1 | 0.61 | 0.35 | 0.66 |
| 0.8, top-p 0.95 | 0.67 | 0.59 | 0.73 |
| 0.6, top-p 0.95, top-k 20 | 0.75 | 0.68 | 0.77 |

The last column would make what a seed gives depend on what was drafted; that is not worth a twentieth.

In half precision, rows verified together are rounded a little otherwise than single ones, and a near tie may fall the
other way. Nano's greedy texts that came to differ from plain decoding's, drafting 1, 2, 3 and 4 deep (2 x86 cores, MLX
0.32.4, 2026-11-30; bfloat16 with the experts' products in float32, as MLX's CPU backend has no others):

| weights and activations | texts, tokens each | differ at depth 1, 2, 3, 4 | beside three others, no drafts |
|---|---|---|---|
| 4-bit, float32 | 20, 100 | 0, 0, 0, 0 | 0 |
| 4-bit, bfloat16 | 10, 100 | 0, 1, 1, 0 | 2 |
| bfloat16 | 20, 200 | 3, 4, 4, 6 | 1 |

At each place where they part, the best two scores are at most 0.13 apart, most often equal. Working the scores out in
float32 from bfloat16 streams makes it no rarer: 6, 3, 5, 5 of 20.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def accept(drafted: Sequence[int], drawn: Sequence[int]) -> int:
    """How many drafts are kept: the longest prefix that is what the model drew.

    `drawn` holds one token more than `drafted`: row i is the model's choice after the drafts before i. The kept
    drafts and the token drawn after them are what the round emits.
    """
    for index, (guess, token) in enumerate(zip(drafted, drawn, strict=False)):
        if guess != token:
            return index
    return len(drafted)


def count_usable(peaks: Sequence[float]) -> int:
    """Rows before the first whose scores are no numbers: what may be emitted of a run that a fault cuts short."""
    return next((index for index, peak in enumerate(peaks) if not math.isfinite(peak)), len(peaks))
