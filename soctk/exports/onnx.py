"""Export of a surrogate's forward pass as an ONNX graph."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from soctk.function import check_function
from soctk.surrogate import ConvexSurrogate


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
    the graph.

    Args:
        model: the surrogate.
        path: the file to write.

    Raises:
        ModuleNotFoundError: the extra `onnx` is missing.
        NotImplementedError: a model of branches over windows in float64, whose convolutions onnxruntime does not have
            in that precision.
    """
    check_function(model)
    if model.dtype == torch.float64 and any(part.traits.windowed is not None for part in _parts(model)):
        raise NotImplementedError(
            "model: onnxruntime has no convolutions in double precision; export copy.deepcopy(model).float()"
        )
    try:
        from onnxscript import opset18, optimizer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('onnxscript is missing: pip install "soctk[onnx]"', name=error.name) from None

    op: Any = opset18

    def softplus(a, beta: float = 1.0, threshold: float = 20.0):
        # onnxruntime has no Softplus in double precision; beta is 1 throughout.
        rest = op.Log(op.Add(op.Exp(op.Neg(op.Abs(a))), op.CastLike(op.Constant(value_float=1.0), a)))
        return op.Add(op.Relu(a), rest)

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
            custom_translation_table={torch.ops.aten.softplus.default: softplus},
            verbose=False,
            optimize=False,  # that leaves out what is nearly 0 in a sum, and nearly 1 in a product
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    for simplify in (optimizer.inline, optimizer.fold_constants, optimizer.remove_unused_nodes):
        simplify(program.model)
    program.save(Path(path))
