"""The mean of surrogates: convex as they are, one conic form, decided at little more than the cost of one.

    f(x; theta) = 1/M sum_m f_m(x; theta)

Models that were trained on other samples, or from other initial weights, differ most where data are few; their mean is
usually better than any of them, and their spread says how far it can be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from soctk.checks import ArrayLike, as_tensor, check_last_dim, check_sequence
from soctk.forms.conic_form import ConicForm
from soctk.forms.context_map import ContextMap
from soctk.forms.joining import mean
from soctk.forms.mean_map import in_units, total, with_fewer_rows
from soctk.function import check_function
from soctk.registry import class_name, surrogate_class
from soctk.support import Support
from soctk.surrogate import ConvexSurrogate

ALIKE = ("dim", "context_dim", "dtype", "device")


def average(models: Sequence[ConvexSurrogate]) -> AverageSurrogate:
    """Return the mean of surrogates as a surrogate.

    It holds the models themselves: what becomes of them becomes of it (where all are dense, no `context_range`: then
    they have to be averaged again). Terms of a kind become one, so that decisions
    with six models take far less than six times as long as with one; where all are dense models such as `SOCICNN`,
    their coefficients come from one product with the context, and the average can be frozen.

    Args:
        models: at least one; of the same dimensions, dtype and device, whatever their units.

    Raises:
        TypeError: something else than a surrogate.
        ValueError: no models, or models that differ in dimensions, dtype or device.
        NotImplementedError: a model without a conic form.
    """
    dense = all(model.context_map() is not None and model.context_range is None for model in _checked(models))
    return (DenseAverage if dense else MixedAverage)(models)


class AverageSurrogate(ConvexSurrogate):
    """What `average` returns: a `DenseAverage` or a `MixedAverage`.

    Args:
        models: surrogates, or for each a dictionary of its "class" and the "config" that it is made of.

    Attributes:
        models: the surrogates.
    """

    _support: Support | None = None

    def __init__(self, models: Sequence[ConvexSurrogate | Mapping[str, Any]]) -> None:
        if type(self) is AverageSurrogate:
            raise TypeError("AverageSurrogate: make one by soctk.average(models)")
        check_sequence(models, "models")
        made = _checked([_made(model) if isinstance(model, Mapping) else model for model in models])
        super().__init__(made[0].dim, made[0].context_dim, dtype=made[0].dtype)
        self.to(made[0].device)
        self.models = nn.ModuleList(made)

    @property
    def support(self) -> Support | None:  # type: ignore[override]
        """Where the data of all models were, or those of a fit of the average itself."""
        return self._support or Support.joined([model.support for model in self.members])

    @support.setter
    def support(self, support: Support | None) -> None:
        self._support = support
        inside = () if support is None else support.parts
        if len(inside) == len(self.models):  # as `Support.joined` left them
            for model, own in zip(self.members, inside, strict=True):
                model.support = own

    def spread(self, x: ArrayLike, context: ArrayLike | None = None) -> Tensor:
        """Return how far the models are apart, the standard deviation of their M values around f: 0 for one model.

        Args:
            x: (*batch, n).
            context: (*batch, p), or (p,) for one context shared by all points; None where p = 0.

        Returns:
            (*batch).

        Raises:
            ValueError: as a model's own.
        """
        given = as_tensor(x, "x", dtype=self.dtype)
        check_last_dim(given, self.dim, "x")
        points = (given - self.x_mean) / self.x_scale
        theta = self._standard_context(self.check_context(context)) if self.context_dim > 0 else None
        values = torch.stack([model(points, theta) for model in self.members])
        return self.value_scale * values.std(dim=0, correction=0)

    def _context_units(self) -> tuple[Tensor, Tensor]:
        mean, scale = self.members[0]._context_units()
        return self.context_mean + self.context_scale * mean, self.context_scale * scale

    @property
    def members(self) -> list[ConvexSurrogate]:
        """The models as a list."""
        return list(self.models)  # type: ignore[arg-type]

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"models": [{"class": class_name(type(model)), "config": model.config()} for model in self.members]}


class DenseAverage(AverageSurrogate):
    """The mean of dense models: their context maps as one."""

    def _context_map(self) -> ContextMap | None:
        maps, count = [], len(self.models)
        for model in self.members:
            coefficients = model.context_map()
            if coefficients is None:
                raise NotImplementedError(f"models: expected dense models, got {type(model).__name__}")
            if model.context_range is not None:
                raise ValueError("models: one has got a context_range since; take soctk.average of them again")
            maps.append(
                in_units(
                    coefficients,
                    scale=model.value_scale / count,
                    shift=model.value_mean / count,
                    x_scale=model.x_scale,
                    x_mean=model.x_mean,
                    context_mean=model.context_mean,
                    context_scale=model.context_scale,
                )
            )
        return with_fewer_rows(total(maps))


class MixedAverage(AverageSurrogate):
    """The mean of surrogates of any kind: their forms as one."""

    def _conic_form(self, context: Tensor) -> ConicForm:
        return mean([model._folded_form(context) for model in self.members])

    def _value(self, x: Tensor, context: Tensor) -> Tensor:
        return torch.stack([model.evaluate(x, context) for model in self.members]).mean(dim=0)


def _made(described: Mapping[str, Any]) -> ConvexSurrogate:
    """Return a surrogate with the initial weights of its class."""
    if set(described) != {"class", "config"}:
        raise ValueError(f'models: expected dictionaries of "class" and "config", got {sorted(described)}')
    return surrogate_class(described["class"])(**described["config"])


def _checked(models: Sequence[Any]) -> list[ConvexSurrogate]:
    """Return the models, if they have a mean."""
    check_sequence(models, "models")
    if not models:
        raise ValueError("models: expected at least one, got none")
    for index, model in enumerate(models):
        check_function(model, f"models[{index}]")
        if not model.has_conic_form:
            raise NotImplementedError(
                f"models[{index}]: {model.without_form()}; neither has a mean with it; "
                "leave it out, or give its class a `_conic_form`"
            )
        for name in ALIKE:
            here, first = getattr(model, name), getattr(models[0], name)
            if here != first:
                raise ValueError(f"models: expected one {name} for all, got {first} at index 0 and {here} at {index}")
    return list(models)
