"""Second stage: the draft head alone, three drafts deep, from the frozen trunk's own odds. One process per core:

    python train_draft_head.py FOLDER RANK WORLD MINUTES

Reads trunk.pt, writes nano.pt.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import torch
from batches import Windows, agree_on, average_gradients, join_ranks
from geometry import build_config
from network import DraftHead, balance_losses, faster_layers, reference, run_trunk
from torch import Tensor, nn

PEAK_RATE = 1.5e-3
LAST_RATE_SHARE = 0.02
WARM_UP_STEPS = 20
DEPTH_WEIGHTS = (1.0, 0.7, 0.5)
BALANCE_WEIGHT = 0.01


def distil(trunk: nn.Module, head: DraftHead, tokens: Tensor) -> tuple[Tensor, list[float]]:
    """The loss of all depths, and how often each depth's first choice is the trunk's."""
    balance_losses.clear()
    with torch.no_grad():
        stream, mixed = run_trunk(trunk, tokens)
        logits = trunk.lm_head(mixed)
        odds, choice = logits.softmax(-1), logits.argmax(-1)
    loss, agreement = torch.zeros(()), list[float]()
    for depth, (weight, drafted) in enumerate(zip(DEPTH_WEIGHTS, head(trunk, tokens, stream, 3), strict=True), 1):
        known = slice(depth, depth + drafted.shape[1])
        guess = trunk.lm_head(drafted).log_softmax(-1)
        loss = loss - weight * (odds[:, known] * guess).sum(-1).mean()
        agreement.append((guess.argmax(-1) == choice[:, known]).float().mean().item())
    return loss + BALANCE_WEIGHT * sum(balance_losses) / len(balance_losses), agreement


def main(folder: Path, rank: int, world: int, minutes: float) -> None:
    """Train for the given time."""
    join_ranks(folder, "draft_head", rank, world)
    config = build_config()
    trunk, head = reference.Qwen4ExpForCausalLM(config), DraftHead(config)
    saved = torch.load(folder / "trunk.pt")
    trunk.load_state_dict(saved["trunk"])
    head.load_state_dict(saved["head"])
    trunk.requires_grad_(False)
    trunk.eval(), head.train()
    parameters = [p for name, p in head.named_parameters() if "indexer" not in name]
    optimizer = torch.optim.AdamW(parameters, lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    windows = Windows(folder, 500 + rank)
    began, step = time.time(), 0
    while (progress := agree_on((time.time() - began) / (minutes * 60), world)) < 1:
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            share = LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * cosine
            group["lr"] = PEAK_RATE * min(1, (step + 1) / WARM_UP_STEPS) * share
        loss, agreement = distil(trunk, head, windows.draw())
        loss.backward()
        average_gradients(parameters, world)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if rank == 0 and step % 20 == 0:
            told = " ".join(f"{share:.3f}" for share in agreement)
            print(f"{step} steps, {time.time() - began:.0f} s, loss {loss:.3f}, agreement {told}", flush=True)
    if rank == 0:
        torch.save({"trunk": trunk.state_dict(), "head": head.state_dict()}, folder / "nano.pt")


if __name__ == "__main__":
    with faster_layers():
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
