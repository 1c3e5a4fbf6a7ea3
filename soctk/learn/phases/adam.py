"""The first phase of the recipe: AdamW in float32 with a one-cycle learning rate (Smith and Topin 2019)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.checks import seeded
from soctk.learn.phases.phase import Phase
from soctk.learn.report import FitStatus
from soctk.learn.search import Run
from soctk.learn.trainer import Trainer
from soctk.learn.units import Standardized
from soctk.losses import residual_loss
from soctk.surrogate import ConvexSurrogate

WARM_UP = 0.1
BETAS = (0.9, 0.99)


@dataclass(frozen=True)
class Adam(Phase):
    """AdamW on mini-batches; the epoch with the best validation loss is kept.

    Attributes:
        epochs: passes over the data.
        learning_rate: the peak.
        weight_decay: AdamW's.
        batch_rows: observed values in a mini-batch.
        clip: largest gradient norm.
        level_weight: of the squared mean residual of an instance (`soctk.losses.residual_loss`).
        seed: of the mini-batches.
    """

    epochs: int
    learning_rate: float
    weight_decay: float
    batch_rows: int
    clip: float
    level_weight: float
    seed: int

    def steps(self, trainer: Trainer) -> int:
        return self.epochs * batches_per_epoch(self.batch_rows, trainer.data.instances, trainer.data.candidates)

    def run(self, trainer: Trainer) -> None:
        train, held_out = trainer.standardized(torch.float32)
        trainer.model.to(torch.float32).train()
        descent = _Descent(self, trainer, train)
        run = Run(FitStatus.ITERATION_LIMIT)
        for _ in range(self.epochs):
            loss = descent.epoch()
            run.iterations = descent.steps
            if not math.isfinite(loss):
                run.status = FitStatus.DIVERGED
                break
            with torch.no_grad():
                reached = float(self.loss(trainer.model, held_out))
            run.train.append((run.iterations, loss))
            run.validation.append((run.iterations, reached))
            if reached < run.best:
                run.best = reached
                trainer.keep()
            if trainer.deadline.passed:
                run.status = trainer.deadline.status
                break
        trainer.load(trainer.best)
        trainer.record(run)

    def keep_whole(self, trainer: Trainer) -> None:
        trainer.keep_whole(self.level_weight)

    def loss(self, model: ConvexSurrogate, part: Standardized) -> Tensor:
        """Return the loss on standardised data."""
        return residual_loss(model._value(part.x, part.context) - part.value, self.level_weight)


class _Descent:
    """AdamW with its schedule, batches and steps taken."""

    def __init__(self, options: Adam, trainer: Trainer, train: Standardized) -> None:
        self.options, self.trainer, self.train, self.steps = options, trainer, train, 0
        part = trainer.model.traits.affine
        # The affine part's networks are left fresh for their own phases: noisy steps leave dead units behind.
        later = {id(weight) for weight in part.network_parameters()} if part is not None else set()
        self.weights = [weight for weight in trainer.weights() if id(weight) not in later]
        rate, decay = options.learning_rate, options.weight_decay
        self.optimizer = torch.optim.AdamW(self.weights, lr=rate, betas=BETAS, weight_decay=decay)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, rate, total_steps=options.steps(trainer) + 1, pct_start=WARM_UP
        )
        self.generator = seeded(options.seed)

    def epoch(self) -> float:
        """Take a step for every mini-batch; return the last loss, the first that is not finite."""
        loss = math.nan
        for batch in mini_batches(self.train, self.options.batch_rows, self.generator):
            self.optimizer.zero_grad(set_to_none=True)
            value = self.options.loss(self.trainer.model, batch)
            value.backward()
            torch.nn.utils.clip_grad_norm_(self.weights, self.options.clip)
            self.optimizer.step()
            loss = float(value.detach())
            if not math.isfinite(loss):
                break
            self.schedule.step()
            self.trainer.progress.advance(loss)
            self.steps += 1
        return loss


def batches_per_epoch(batch_rows: int, instances: int, candidates: int) -> int:
    """Return the number of mini-batches: whole instances, or pieces of an instance that is larger than a batch."""
    if candidates > batch_rows:
        return instances * math.ceil(candidates / batch_rows)
    return math.ceil(instances / (batch_rows // candidates))


def mini_batches(train: Standardized, batch_rows: int, generator: torch.Generator) -> Iterator[Standardized]:
    """Yield one epoch's mini-batches in random order."""
    instances, candidates = train.value.shape
    batches = batches_per_epoch(batch_rows, instances, candidates)
    order = torch.randperm(instances, generator=generator).to(train.x.device)
    if candidates <= batch_rows:
        yield from (train.rows(index) for index in order.chunk(batches))
        return
    for index in order.split(1):
        shuffled = torch.randperm(candidates, generator=generator).to(train.x.device)
        yield from (train.rows(index).columns(piece) for piece in shuffled.tensor_split(batches // instances))
