"""Export of a surrogate's forward pass as an ONNX graph."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from soctk.checks import as_array, seeded
from soctk.function import check_function
from soctk.surrogate import ConvexSurrogate

CHECKED = 16
"""Points at which a graph is compared with its model."""
ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-3}
"""The largest difference there, relative to the largest value."""


def _parts(model: ConvexSurrogate) -> list[ConvexSurrogate]:
    """Return the model and the models inside."""
    return [part for part in model.modules() if isinstance(part, ConvexSurrogate)]


class _Forward(nn.Module):
    def __init__(self, model: ConvexSurrogate) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if context is None:
            return self.model.evaluate(x.unsqueeze(0), x.new_zeros(1, 0)).squeeze(0)
        return self.model.evaluate(x.unsqueeze(1), context).squeeze(-1)


def to_onnx(model: ConvexSurrogate, path: str | os.PathLike[str]) -> None:
    """Write f(x, context) as an ONNX file with inputs x (batch, n) and, where p > 0, context (batch, p).

    The output is value (batch,), in the weights' precision, of at least one row. Checks of the input are not part of
    the graph. It is compared with the model before it is written.

    Args:
        model: the surrogate.
        path: the file to write.

    Raises:
        ModuleNotFoundError: the extra `onnx` is missing.
        NotImplementedError: an operation that onnxruntime does not have in the weights' precision, as the convolutions
            of branches over windows in float64, or that the exporter translates into another one.
    """
    check_function(model)
    if model.dtype == torch.float64 and any(part.traits.windowed is not None for part in _parts(model)):
        raise NotImplementedError(
            "model: onnxruntime has no convolutions in double precision; export copy.deepcopy(model).float()"
        )
    try:
        import onnxruntime  # noqa: F401 (what is written is compared by it)
        from onnxscript import optimizer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'{error.name} is missing: pip install "soctk[onnx]"', name=error.name) from None

    batch = torch.export.Dim("batch")
    example = [torch.zeros(2, model.dim, dtype=model.dtype, device=model.device)]
    names = ["x"]
    if model.context_dim > 0:
        example.append(torch.zeros(2, model.context_dim, dtype=model.dtype, device=model.device))
        names.append("context")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        forward = _Forward(model).eval()
        forward(*example)  # what models keep between calls is then made of real tensors, not of the exporter's
        program = torch.onnx.export(
            forward,
            tuple(example),
            dynamo=True,
            input_names=names,
            output_names=["value"],
            dynamic_shapes=tuple({0: batch} for _ in names),
            custom_translation_table=_translations(model.dtype),
            verbose=False,
            optimize=False,  # that leaves out what is nearly 0 in a sum, and nearly 1 in a product
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    for simplify in (optimizer.inline, optimizer.fold_constants, optimizer.remove_unused_nodes):
        simplify(program.model)
    _check(program.model_proto.SerializeToString(), forward, names, example)
    program.save(Path(path))


def _check(graph: bytes, forward: _Forward, names: Sequence[str], example: Sequence[Tensor]) -> None:
    """Raise NotImplementedError where onnxruntime computes something else than the model, at points in its units."""
    import onnxruntime

    model, generator = forward.model, seeded(0)
    units = ((model.x_mean, model.x_scale), (model.context_mean, model.context_scale))
    given = [
        (mean.cpu() + scale.cpu() * torch.randn(CHECKED, part.shape[1], generator=generator)).to(part)
        for part, (mean, scale) in zip(example, units, strict=False)
    ]
    with torch.no_grad():
        value = as_array(forward(*given))
    try:
        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {name: as_array(part) for name, part in zip(names, given, strict=True)})
    except Exception as error:  # of classes of its own, which do not have a base in common
        raise NotImplementedError(
            f"model: onnxruntime does not run its graph in {model.dtype} ({error}); write the operation in others, or "
            "export copy.deepcopy(model).float()"
        ) from error
    largest = np.abs(value[np.isfinite(value)]).max(initial=float(model.value_scale))
    differs = np.isfinite(value) & ~(np.abs(found - value) <= ROUNDING[model.dtype] * largest)
    if bool(differs.any()):
        raise NotImplementedError(
            f"model: its graph computes {found[differs][0]:.17g} where the model has {value[differs][0]:.17g}: the "
            "exporter translates an operation into another one, or rounds a number in it; write the operation in "
            "others, and numbers as tensors"
        )


def _translations(dtype: torch.dtype) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return translations of our own: of what onnxruntime lacks in double precision, and with numbers in full.

    The exporter rounds numbers that are no tensors to single precision, and makes them double then.
    """
    from onnxscript import ir, opset18

    op: Any = opset18
    aten = torch.ops.aten

    def number(value: float):
        return op.Constant(value=ir.tensor(torch.tensor(value, dtype=dtype).numpy()))

    def softplus(a, beta: float = 1.0, threshold: float = 20.0):
        inner = op.Mul(a, number(beta))
        rest = op.Log(op.Add(op.Exp(op.Neg(op.Abs(inner))), number(1.0)))
        value = op.Div(op.Add(op.Relu(inner), rest), number(beta))
        return op.Where(op.Greater(inner, number(threshold)), a, value)

    def leaky_relu(a, negative_slope: float = 0.01):
        return op.Where(op.Greater(a, number(0.0)), a, op.Mul(a, number(negative_slope)))

    def clamp(a, min: float | None = None, max: float | None = None):
        a = a if min is None else op.Max(a, number(min))
        return a if max is None else op.Min(a, number(max))

    def scalar_tensor(s: float, dtype: int = -1, layout: str = "", device: str = "", pin_memory: bool = False):
        return number(s) if dtype < 0 else op.Cast(number(s), to=dtype)

    def full_like(
        a,
        fill_value: float,
        dtype: int = -1,
        layout: str = "",
        device: str = "",
        pin_memory: bool = False,
        memory_format: str = "",
    ):
        value = op.CastLike(number(fill_value), a) if dtype < 0 else op.Cast(number(fill_value), to=dtype)
        return op.Expand(value, op.Shape(a))

    def comparison(name: str) -> Callable[..., Any]:
        def compare(a, other: float):
            return getattr(op, name)(a, op.CastLike(number(other), a))

        return compare

    return {
        aten.softplus.default: softplus,
        aten.leaky_relu.default: leaky_relu,
        aten.clamp.default: clamp,
        aten.scalar_tensor.default: scalar_tensor,
        aten.full_like.default: full_like,
        aten.gt.Scalar: comparison("Greater"),
        aten.ge.Scalar: comparison("GreaterOrEqual"),
        aten.lt.Scalar: comparison("Less"),
        aten.le.Scalar: comparison("LessOrEqual"),
    }
