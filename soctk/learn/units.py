"""The units a model learns in, and data brought to them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.learn.data import ValueData
from soctk.surrogate import ConvexSurrogate

ALIKE = 3.0
"""Coordinates of x are in one unit if none spreads more than so many times as much as another, and their means are not
further apart than that."""


@torch.no_grad()
def standardize(model: ConvexSurrogate, data: ValueData) -> None:
    """Give the model the data's units: mean and scale for x (`mean_and_spread`), the typical standard deviation within
    an instance for the value, mean and scale by column for the context. What does not vary keeps the scale 1. The
    model is told the range of every coordinate of x in these units. Any `context_range` of it or inside of it goes.

    Raises:
        ValueError: numbers so large or small that their spread is none of the model's numbers; the model stays as it
            was.
    """
    traits, value, x, context = model.traits, data.value, data.x, data.context
    inside = bool((value != value[:, :1]).any())
    spread = value.var(dim=1, unbiased=False).mean().sqrt() if inside else value.std(unbiased=False)
    units = {"value": _of_column(value.reshape(-1), spread)}
    if traits.shifts_inputs:
        units["x"] = mean_and_spread(x)
        spread = context.std(dim=0, unbiased=False) if data.context_dim > 0 else context.new_ones(0)
        units["context"] = _of_column(context, spread)
    else:
        for name, values in (("x", x), ("context", context)):
            spread = values.double().square().mean().sqrt()
            units[name] = values.new_zeros(()), torch.where((values != 0).any(), spread, 1.0)
    for name, (mean, scale) in units.items():
        _check_units(name, mean, scale, model.dtype)
    value_unit = tuple(map(float, units.pop("value")))
    model.set_standardization(value=value_unit, **units)
    for part in model.modules():
        if isinstance(part, ConvexSurrogate):
            part.context_range = None
    if traits.set_range is not None:
        standard = (x.double() - model.x_mean.double().cpu()) / model.x_scale.double().cpu()
        traits.set_range(*standard.flatten(end_dim=1).aminmax(dim=0))


def mean_and_spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of decisions (..., n) by coordinate, (n,) each, all positive.

    The same for all coordinates where they are `ALIKE`: then they are in one unit, in which directions across them mean
    something, and no chance of the data tilts what all decisions have in common. Otherwise, as where one is a price and
    another a quantity, each has its own. A coordinate that never varies has a typical spread.
    """
    rows = x.reshape(-1, x.shape[-1])
    moves = (rows != rows[:1]).any(dim=0)
    if not bool(moves.any()):
        return rows[0], torch.ones_like(rows[0])
    mean, spread = torch.where(moves, rows.mean(dim=0), rows[0]), rows.std(dim=0, unbiased=False)
    least = spread[moves].min()
    if bool(torch.maximum(spread.max(), mean.max() - mean.min()) <= ALIKE * least):
        return x.mean().expand_as(mean), x.std(unbiased=False).expand_as(mean)
    return mean, torch.where(moves, spread, spread[moves].log().mean().exp())


def _of_column(rows: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and scale over the first dimension; of what is all equal it itself, for no rounding, and 1."""
    moves = (rows != rows[:1]).any(dim=0)
    return torch.where(moves, rows.mean(dim=0), rows[0]), torch.where(moves, spread, 1.0)


def _check_units(name: str, mean: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError where squares overflowed or vanished, or the model's numbers do."""
    limits = torch.finfo(dtype)
    good = (mean.abs() <= limits.max) & (scale >= limits.tiny) & (scale <= limits.max)
    if not bool(good.all()):
        mean, scale = (each[~good].reshape(-1)[0] for each in (mean, scale))
        raise ValueError(
            f"{name}: expected numbers whose mean and spread, and their squares, the model's {dtype} can hold, got "
            f"{mean:.2g} and {scale:.2g}; give them in other units"
        )


@dataclass(frozen=True, eq=False)
class Standardized:
    """Data in a model's units: context (N, p), x (N, M, n), value (N, M), in one dtype on the model's device.

    Attributes:
        root: (N, M), square roots of the values' weights; None where all count alike.
        repeats: (N, M), which values only repeat others (`ValueData.counts`); None where none do.
    """

    context: Tensor
    x: Tensor
    value: Tensor
    root: Tensor | None = None
    repeats: Tensor | None = None

    @property
    def observed(self) -> int:
        """How many values are observations."""
        return self.value.numel() - (0 if self.repeats is None else int(self.repeats.sum()))

    @classmethod
    def of(
        cls,
        model: ConvexSurrogate,
        data: ValueData,
        dtype: torch.dtype,
        device: torch.device | str | None = None,
    ) -> Standardized:
        """Bring data to the model's units; computed in float64, then rounded; to the model's device by default."""
        units = {name: buffer.double().cpu() for name, buffer in model.named_buffers(recurse=False)}
        context = data.context.double().cpu()
        if "context_range" in units:
            context = context.clamp(*units["context_range"])
        parts = (
            (context - units["context_mean"]) / units["context_scale"],
            (data.x.double().cpu() - units["x_mean"]) / units["x_scale"],
            (data.value.double().cpu() - units["value_mean"]) / units["value_scale"],
        )
        root = repeats = None
        if data.counts is not None:
            # What is there several times counts as often as the rest: once.
            root = (data.counts / data.candidates).sqrt().unsqueeze(1).expand_as(data.value)
            root = root.to(dtype=dtype, device=device or model.device)
            repeats = (torch.arange(data.candidates) >= data.counts.unsqueeze(1)).to(device or model.device)
        return cls(*(part.to(dtype=dtype, device=device or model.device) for part in parts), root, repeats)

    def focused(self, focus: float) -> Standardized:
        """Put the best candidates of each instance first; weigh a value g above the best by 1 / (1 + focus g)^2.

        A surrogate is for its minimum over a set. Far from it values may be larger by orders of magnitude, and fitting
        all alike spends the model's branches on those. Data stay as they are for `focus` 0.
        """
        if focus == 0:
            return self
        value, order = self.value.sort(dim=1)
        x = self.x.gather(1, order.unsqueeze(-1).expand_as(self.x))
        root = 1 / (1 + focus * (value - value[:, :1]))
        if self.root is not None:
            root = root * self.root.gather(1, order)
        repeats = None if self.repeats is None else self.repeats.gather(1, order)
        return Standardized(self.context, x, value, root, repeats)

    @property
    def effective(self) -> float:
        """How many candidates of equal weight tell as much as those of an instance, the mean: (sum w)^2 / sum w^2.

        The effective sample size of Kish (1965).
        """
        if self.root is None:
            return float(self.x.shape[1])
        weight = self.root.square()
        return float((weight.sum(dim=1).square() / weight.square().sum(dim=1)).mean())

    def candidates(self, count: int) -> Standardized:
        """Keep the first `count` candidates of each instance: the best where they are `focused`, else any."""
        return self.columns(slice(count))

    def rows(self, index: Tensor | slice) -> Standardized:
        """Keep the instances `index`."""
        kept = (None if part is None else part[index] for part in (self.root, self.repeats))
        return Standardized(self.context[index], self.x[index], self.value[index], *kept)

    def columns(self, index: Tensor | slice) -> Standardized:
        """Keep the candidates `index` of each instance."""
        kept = (None if part is None else part[:, index] for part in (self.root, self.repeats))
        return Standardized(self.context, self.x[:, index], self.value[:, index], *kept)

    def instances(self, count: int) -> Standardized:
        """Keep the first `count` instances."""
        return self.rows(slice(count))
