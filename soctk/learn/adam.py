"""The first phase of the recipe: AdamW in float32 with a one-cycle learning rate (Smith and Topin 2019)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from soctk.learn.report import FitConfig, FitStatus
from soctk.learn.units import Standardized

WARM_UP = 0.1
BETAS = (0.9, 0.99)


def batches_per_epoch(config: FitConfig, instances: int, candidates: int) -> int:
    """Return the number of mini-batches: whole instances, or pieces of an instance that is larger than a batch."""
    if candidates > config.batch_rows:
        return instances * math.ceil(candidates / config.batch_rows)
    return math.ceil(instances / (config.batch_rows // candidates))


def mini_batches(train: Standardized, config: FitConfig, generator: torch.Generator) -> Iterator[Standardized]:
    """Yield one epoch's mini-batches in random order."""
    instances, candidates = train.value.shape
    batches = batches_per_epoch(config, instances, candidates)
    order = torch.randperm(instances, generator=generator).to(train.x.device)
    if candidates <= config.batch_rows:
        yield from (train.rows(index) for index in order.chunk(batches))
        return
    for index in order.split(1):
        shuffled = torch.randperm(candidates, generator=generator).to(train.x.device)
        yield from (train.rows(index).columns(piece) for piece in shuffled.tensor_split(batches // instances))


def adam(
    weights: list[nn.Parameter],
    loss: Callable[[Standardized], Tensor],
    train: Standardized,
    config: FitConfig,
    *,
    deadline: float,
    on_step: Callable[[float], None],
    on_epoch: Callable[[int, float], None],
) -> FitStatus:
    """Train `weights` in place on mini-batches of `loss`; `on_epoch(step, loss)` is called after each epoch."""
    optimizer = torch.optim.AdamW(weights, lr=config.learning_rate, betas=BETAS, weight_decay=config.weight_decay)
    batches = batches_per_epoch(config, train.x.shape[0], train.x.shape[1])
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.learning_rate, total_steps=config.epochs * batches + 1, pct_start=WARM_UP
    )
    generator = torch.Generator().manual_seed(config.seed)
    for epoch in range(1, config.epochs + 1):
        current = math.nan
        for batch in mini_batches(train, config, generator):
            optimizer.zero_grad(set_to_none=True)
            value = loss(batch)
            value.backward()
            torch.nn.utils.clip_grad_norm_(weights, config.clip)
            optimizer.step()
            current = float(value.detach())
            if not math.isfinite(current):
                return FitStatus.DIVERGED
            schedule.step()
            on_step(current)
        on_epoch(epoch * batches, current)
        if time.perf_counter() > deadline:
            return FitStatus.TIME_LIMIT
    return FitStatus.ITERATION_LIMIT
