"""First stage: trunk and draft head together, from scratch. One process per core:

    python train_trunk.py FOLDER RANK WORLD MINUTES

FOLDER holds what prepare_data.py wrote; rank 0 writes trunk.pt there.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from batches import BATCH, Windows, agree_on, average_gradients, join_ranks, load_tokens
from geometry import WINDOW, build_config
from network import DraftHead, balance_losses, build_trunk, faster_layers, run_trunk
from torch import Tensor, nn

PEAK_RATE = 2.2e-3
LAST_RATE_SHARE = 0.02
WARM_UP_STEPS = 60
DRAFT_WEIGHT, BALANCE_WEIGHT = 0.3, 0.01
SAVE_EVERY_S = 170


def compute_losses(trunk: nn.Module, head: DraftHead, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy of the trunk and of the head's first depth."""
    balance_losses.clear()
    stream, mixed = run_trunk(trunk, tokens)
    drafted = head(trunk, tokens, stream, 1)[0]
    logits, draft_logits = trunk.lm_head(mixed[:, :-1]), trunk.lm_head(drafted[:, :-1])
    return (
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()),
        F.cross_entropy(draft_logits.flatten(0, 1), tokens[:, 2:].flatten()),
    )


@torch.no_grad()
def evaluate(trunk: nn.Module, head: DraftHead, held_out: Tensor, windows: int = 24) -> tuple[float, float]:
    """Both losses on evenly spaced held-out windows."""
    trunk.eval(), head.eval()
    starts = torch.linspace(0, len(held_out) - WINDOW - 1, windows).long()
    totals = torch.zeros(2)
    for group in starts.split(BATCH):
        tokens = torch.stack([held_out[start : start + WINDOW] for start in group])
        totals += torch.stack(compute_losses(trunk, head, tokens)) * len(group)
    trunk.train(), head.train()
    return tuple((totals / windows).tolist())


def build_optimizer(trunk: nn.Module, head: DraftHead) -> torch.optim.Optimizer:
    """AdamW; weight decay for matrices only."""
    named = [*trunk.named_parameters(), *head.named_parameters()]
    decayed = [p for name, p in named if p.dim() >= 2 and "embed" not in name and "conv1d" not in name]
    apart = {id(parameter) for parameter in decayed}
    others = [p for _, p in named if id(p) not in apart]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95), eps=1e-8, fused=True)


def plan_rate(step: int, progress: float) -> float:
    """Linear warm-up, then a cosine over the time that is left."""
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return PEAK_RATE * min(1, (step + 1) / WARM_UP_STEPS) * (LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * cosine)


def save(folder: Path, trunk: nn.Module, head: DraftHead) -> None:
    """Write the checkpoint whole or not at all."""
    torch.save({"trunk": trunk.state_dict(), "head": head.state_dict()}, folder / "trunk.tmp")
    os.replace(folder / "trunk.tmp", folder / "trunk.pt")


def main(folder: Path, rank: int, world: int, minutes: float) -> None:
    """Train for the given time."""
    torch.manual_seed(0)
    join_ranks(folder, "trunk", rank, world)
    config = build_config()
    trunk, head = build_trunk(config), DraftHead(config)
    optimizer, windows = build_optimizer(trunk, head), Windows(folder, 100 + rank)
    parameters = [*trunk.parameters(), *head.parameters()]
    held_out = load_tokens(folder, "held_out")
    trunk.train(), head.train()
    began = saved = time.time()
    step = 0
    while (progress := agree_on((time.time() - began) / (minutes * 60), world)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = plan_rate(step, progress)
        loss, draft_loss = compute_losses(trunk, head, windows.draw())
        balance = sum(balance_losses) / len(balance_losses)
        (loss + DRAFT_WEIGHT * draft_loss + BALANCE_WEIGHT * balance).backward()
        average_gradients(parameters, world)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if rank == 0 and step % 25 == 0:
            print(f"{step} steps, {time.time() - began:.0f} s, loss {loss:.3f}, draft {draft_loss:.3f}", flush=True)
        if rank == 0 and time.time() - saved > SAVE_EVERY_S:
            print("held out: {:.4f}, draft {:.4f}".format(*evaluate(trunk, head, held_out)), flush=True)
            save(folder, trunk, head)
            saved = time.time()
    if rank == 0:
        print(step, "steps; held out: {:.4f}, draft {:.4f}".format(*evaluate(trunk, head, held_out)), flush=True)
        save(folder, trunk, head)


if __name__ == "__main__":
    with faster_layers():
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
