"""Measure nano on held-out files: perplexity, and how often drafts agree with the trunk.

    python evaluate.py FOLDER

Reads nano.pt and the held-out token files; writes evaluation.json.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from batches import load_tokens
from geometry import WINDOW, build_config
from network import DraftHead, faster_layers, reference, run_trunk
from torch import Tensor, nn

MOST_WINDOWS = 160
ROLLOUT_PROMPTS, ROLLOUT_PROMPT, ROLLOUT_TOKENS = 24, 128, 128


@torch.no_grad()
def measure_forced(trunk: nn.Module, head: DraftHead, tokens: Tensor) -> dict[str, Any]:
    """On the true text: perplexity, and agreement of each draft depth with the trunk's first choice."""
    count = min(len(tokens) // WINDOW, MOST_WINDOWS)
    loss, predicted = 0.0, 0
    agreed, drafts, overlap = torch.zeros(3), torch.zeros(3), 0.0
    for batch in tokens[: count * WINDOW].view(count, WINDOW).split(4):
        stream, mixed = run_trunk(trunk, batch)
        logits = trunk.lm_head(mixed)
        loss += F.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten(), reduction="sum").item()
        predicted += batch[:, 1:].numel()
        for depth, drafted in enumerate(head(trunk, batch, stream, 3)):
            guess = trunk.lm_head(drafted)
            agrees = guess.argmax(-1) == logits.argmax(-1)[:, depth + 1 : depth + 1 + drafted.shape[1]]
            agreed[depth] += agrees.sum()
            drafts[depth] += agrees.numel()
            if depth == 0:
                overlap += torch.minimum(guess.softmax(-1), logits[:, 1:].softmax(-1)).sum().item()
    return {
        "tokens": predicted,
        "perplexity": math.exp(loss / predicted),
        "agreement": (agreed / drafts).tolist(),
        "sampled_acceptance_depth_1": overlap / drafts[0].item(),
    }


@torch.no_grad()
def measure_rollouts(trunk: nn.Module, head: DraftHead, prompts: Tensor) -> dict[str, Any]:
    """On greedy continuations: the share of positions whose drafts are right to depth 1, 2, 3."""
    length = ROLLOUT_TOKENS
    texts = trunk.generate(prompts, max_new_tokens=length, min_new_tokens=length, do_sample=False, pad_token_id=0)
    with faster_layers():
        stream, _ = run_trunk(trunk, texts)
        first = prompts.shape[1] - 2  # the head's first row whose draft is a generated token after the first
        rows = texts.shape[1] - 4 - first
        right = [
            trunk.lm_head(drafted).argmax(-1)[:, first : first + rows]
            == texts[:, first + depth + 1 : first + depth + 1 + rows]
            for depth, drafted in enumerate(head(trunk, texts, stream, 3), 1)
        ]
    runs = torch.stack(right).long().cumprod(0)  # (3, B, rows)
    rounds = accepted = 0
    for chain in runs.sum(0):
        place = 0
        while place < rows:
            kept = int(chain[place])
            rounds, accepted, place = rounds + 1, accepted + kept, place + kept + 1
    return {
        "accepted_to_depth": runs.float().mean((1, 2)).tolist(),
        "tokens_per_trunk_forward": 1 + accepted / rounds,
    }


def main(folder: Path) -> None:
    """Measure and write."""
    torch.set_flush_denormal(True)
    config = build_config()
    trunk, head = reference.Qwen4ExpForCausalLM(config).eval(), DraftHead(config).eval()
    saved = torch.load(folder / "nano.pt")
    trunk.load_state_dict(saved["trunk"])
    head.load_state_dict(saved["head"])
    plain = load_tokens(folder, "held_out")
    with faster_layers():
        found = {
            "plain": measure_forced(trunk, head, plain),
            "chat": measure_forced(trunk, head, load_tokens(folder, "held_out_chat")),
        }
    starts = torch.linspace(0, len(plain) - 2 * ROLLOUT_PROMPT - ROLLOUT_TOKENS, ROLLOUT_PROMPTS).long()
    prompts = torch.stack([plain[start : start + ROLLOUT_PROMPT] for start in starts])
    found["greedy"] = measure_rollouts(trunk, head, prompts)
    (folder / "evaluation.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
