"""Random windows of the token files, and two processes that share one model's gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from geometry import WINDOW
from torch import Tensor, nn

BATCH = 4
CHAT_SHARE = 0.2
"""Of all windows, those cut from chats."""


def load_tokens(folder: Path, name: str) -> Tensor:
    """One token file as a vector."""
    return torch.from_numpy(np.load(folder / f"{name}.npy").astype(np.int64))


class Windows:
    """Draws batches (B, T) of training windows."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.plain, self.chat = load_tokens(folder, "train"), load_tokens(folder, "train_chat")
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self) -> Tensor:
        """The next batch."""
        return torch.stack([self.draw_one() for _ in range(BATCH)])

    def draw_one(self) -> Tensor:
        """One window."""
        source = self.chat if torch.rand(1, generator=self.generator).item() < CHAT_SHARE else self.plain
        start = int(torch.randint(0, len(source) - WINDOW - 1, (1,), generator=self.generator).item())
        return source[start : start + WINDOW]


def join_ranks(folder: Path, name: str, rank: int, world: int) -> None:
    """Meet the other processes, when there are any; each runs one thread."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if world > 1:
        meeting = (folder / f".{name}_ranks").resolve()
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)


def agree_on(value: float, world: int) -> float:
    """The first process's value, in all of them."""
    shared = torch.tensor([value])
    if world > 1:
        dist.broadcast(shared, 0)
    return float(shared.item())


def average_gradients(parameters: list[nn.Parameter], world: int) -> None:
    """Every process continues with the mean of all gradients."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if world == 1:
        return
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    flat /= world
    start = 0
    for parameter in parameters:
        parameter.grad.copy_(flat[start : start + parameter.numel()].view_as(parameter))
        start += parameter.numel()
