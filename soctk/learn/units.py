"""The units a model learns in, and data brought to them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.learn.data import ValueData
from soctk.surrogate import ConvexSurrogate


@torch.no_grad()
def standardize(model: ConvexSurrogate, data: ValueData) -> None:
    """Give the model the data's units: one mean and scale for x, the typical standard deviation within an
    instance for the value, mean and scale by column for the context. What does not vary keeps the scale 1. The
    model is told the range of every coordinate of x in these units.
    """
    within = data.value.var(dim=1, unbiased=False).mean().sqrt() if data.candidates > 1 else torch.zeros(())
    value_scale = float(within) or float(data.value.std(unbiased=False)) or 1.0
    context_scale = data.context.std(dim=0, unbiased=False) if data.context_dim > 0 else data.context.new_ones(0)
    x = (float(data.x.mean()), float(data.x.std(unbiased=False)) or 1.0)
    context = (data.context.mean(dim=0), torch.where(context_scale > 0, context_scale, 1.0))
    if not model.shifts_inputs:
        x = (0.0, _root_mean_square(data.x))
        context = (torch.zeros_like(context[0]), torch.full_like(context[1], _root_mean_square(data.context)))
    model.set_standardization(x=x, value=(float(data.value.mean()), value_scale), context=context)
    standard = (data.x.double() - float(model.x_mean)) / float(model.x_scale)
    model.set_range(*standard.flatten(end_dim=1).aminmax(dim=0))


def _root_mean_square(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt()) or 1.0 if values.numel() else 1.0


@dataclass(frozen=True, eq=False)
class Standardized:
    """Data in a model's units: context (N, p), x (N, M, n), value (N, M), in one dtype on the model's device."""

    context: Tensor
    x: Tensor
    value: Tensor

    @classmethod
    def of(cls, model: ConvexSurrogate, data: ValueData, dtype: torch.dtype) -> Standardized:
        """Bring data to the model's units; computed in float64, then rounded."""
        units = {name: buffer.double().cpu() for name, buffer in model.named_buffers(recurse=False)}
        parts = (
            (data.context.double().cpu() - units["context_mean"]) / units["context_scale"],
            (data.x.double().cpu() - units["x_mean"]) / units["x_scale"],
            (data.value.double().cpu() - units["value_mean"]) / units["value_scale"],
        )
        return cls(*(part.to(dtype=dtype, device=model.device) for part in parts))

    def candidates(self, count: int) -> Standardized:
        """Keep the first `count` candidates of each instance; they are exchangeable."""
        return Standardized(self.context, self.x[:, :count], self.value[:, :count])

    def rows(self, index: Tensor) -> Standardized:
        """Keep the instances `index`."""
        return Standardized(self.context[index], self.x[index], self.value[index])

    def columns(self, index: Tensor) -> Standardized:
        """Keep the candidates `index` of each instance."""
        return Standardized(self.context, self.x[:, index], self.value[:, index])

    def instances(self, count: int) -> Standardized:
        """Keep the first `count` instances."""
        return Standardized(self.context[:count], self.x[:count], self.value[:count])
