"""What a surrogate is turned into: affine pieces and ONNX graphs, against the forward pass."""

from __future__ import annotations

import subprocess
import sys

import cvxpy as cp
import numpy as np
import pytest
import torch
from tolerances import DOUBLE, SINGLE, VALUE, close
from zoo import MODELS, shaken

from soctk import (
    SOCICNN,
    Box,
    ConvexSurrogate,
    ConvSOCICNN,
    RecurrentSOCICNN,
    ReLUICNN,
    Simplex,
    affine_pieces,
    average,
    from_cvxpy,
    from_max_affine,
    minimize,
    to_onnx,
)
from soctk_baselines import DCP, PCF

onnxruntime = pytest.importorskip("onnxruntime")
n = 3
EVERY = MODELS | {
    "dcp": lambda n: DCP(n, 3, seed=1),
    "pcf": lambda n: PCF(n, 3, seed=2),
    "average": lambda n: average(
        [SOCICNN(n, 3, quadratics=(4, 5), norms=(2,), conditioning="additive", seed=seed) for seed in range(3)]
    ),
    "average of units": lambda n: average([MODELS["context_units"](n), MODELS["soc"](n)]),
    "mixed average": lambda n: average([DCP(n, 3, seed=1), MODELS["soc"](n)]),
}


@pytest.mark.parametrize("name", ["relu", "soc", "softplus", "hyperbolic", "dcp", "pcf", "average", "mixed average"])
@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
def test_onnxruntime_computes_the_forward_pass(name: str, dtype: torch.dtype, tmp_path) -> None:
    model = shaken(EVERY[name](n), 0.1).to(dtype)
    to_onnx(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    assert [node.name for node in session.get_inputs()] == ["x", "context"]
    for batch in (1, 7):
        x, context = torch.randn(batch, n, dtype=dtype), torch.randn(batch, 3, dtype=dtype)
        (value,) = session.run(["value"], {"x": x.numpy(), "context": context.numpy()})
        close(torch.from_numpy(np.array(value)), model(x, context).detach(), VALUE)


@pytest.mark.parametrize(("mean", "scale"), [(3e-9, 1e-9), (9e-9, 1e-12), (0.0, 1 + 9e-6), (-5.0, 1e7)])
def test_units_stay_in_the_graph_however_near_to_0_or_1(mean: float, scale: float, tmp_path) -> None:
    model = shaken(EVERY["soc"](n), 0.1)
    units = (torch.full((n,), 1e-9, dtype=DOUBLE), torch.full((n,), 1 - 9e-6, dtype=DOUBLE))
    model.set_standardization(value=(mean, scale), x=units, context=tuple(unit[:3] for unit in units))
    to_onnx(model, tmp_path / "m.onnx")
    x, context = torch.randn(7, n, dtype=DOUBLE), torch.randn(7, 3, dtype=DOUBLE)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    (value,) = session.run(["value"], {"x": x.numpy(), "context": context.numpy()})
    expected = model(x, context).detach()
    assert float((expected - mean).abs().amax()) > 0.1 * scale
    assert float((torch.from_numpy(value) - expected).abs().amax()) < VALUE[DOUBLE] * (abs(mean) + scale)


def test_numbers_of_terms_are_in_the_graph_in_double_precision(tmp_path) -> None:
    variable = cp.Variable(2)
    model = from_cvxpy(cp.sum(cp.huber(variable, 0.3)), variable)
    to_onnx(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    (value,) = session.run(None, {"x": np.array([[5.0, 7.0]])})
    assert float(value[0]) == pytest.approx(0.3 * (10 - 0.3 + 14 - 0.3), rel=1e-14)


OPERATIONS = {
    "softplus": lambda u: torch.nn.functional.softplus(u, beta=3.7, threshold=2.5),
    "leaky relu": lambda u: torch.nn.functional.leaky_relu(u, 0.1),
    "clamp": lambda u: (u - u.clamp(-0.2, 0.3)).square(),
    "clamp below": lambda u: u.clamp(min=0.1),
    "numbers": lambda u: (u * 0.1 + 0.3).square() / 0.7,
    "comparisons": lambda u: torch.where(u > 0.1, u - 0.1, 0.0) + torch.where(u <= -0.3, -0.3 - u, 0.0),
    "the others": lambda u: torch.where(u >= 0.1, u - 0.1, 0.0) + torch.where(u < -0.3, -0.3 - u, 0.0),
    "full": lambda u: torch.maximum(u, torch.full_like(u, 0.1)),
    "huber": lambda u: torch.nn.functional.huber_loss(u, torch.zeros_like(u), reduction="none", delta=0.3),
}


class Own(ConvexSurrogate):
    """A function written by a user."""

    convex_by_construction = True

    def __init__(self, operation, dtype: torch.dtype = DOUBLE) -> None:
        super().__init__(n, 0, dtype=dtype)
        self.operation = operation

    def _value(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return self.operation(x).sum(dim=-1)


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
@pytest.mark.parametrize("name", OPERATIONS)
def test_functions_of_ones_own_are_in_the_graph_with_all_of_their_digits(name: str, dtype, tmp_path) -> None:
    model = Own(OPERATIONS[name], dtype)
    to_onnx(model, tmp_path / "m.onnx")
    x = torch.randn(50, n, dtype=dtype)
    (value,) = onnxruntime.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(value, model(x).numpy(), rtol=0, atol=20 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda u: torch.nn.functional.elu(u, 0.5) + u, "Elu"),
        (lambda u: torch.add(u, u, alpha=0.1), "its graph computes"),
    ],
)
def test_a_graph_of_another_function_is_not_written(operation, message: str, tmp_path) -> None:
    with pytest.raises(NotImplementedError, match=message):
        to_onnx(Own(operation), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_a_model_without_context_has_one_input(tmp_path) -> None:
    model = ReLUICNN(n)
    to_onnx(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    x = torch.randn(5, n, dtype=DOUBLE)
    (value,) = session.run(None, {"x": x.numpy()})
    close(torch.from_numpy(np.array(value)), model(x).detach(), VALUE)


def test_without_the_extra_it_says_what_to_install(tmp_path) -> None:
    code = (
        "import sys; sys.modules['onnxscript'] = None\nimport soctk\n"
        "try: soctk.to_onnx(soctk.ReLUICNN(2), 'm.onnx')\nexcept ModuleNotFoundError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert 'pip install "soctk[onnx]"' in result.stdout, result.stderr


@pytest.mark.parametrize("hidden", [(4,), (5, 4), (3, 3, 2)])
@pytest.mark.parametrize("passthrough", [True, False])
def test_the_maximum_of_the_pieces_is_the_network(hidden: tuple[int, ...], passthrough: bool) -> None:
    model = shaken(ReLUICNN(n, hidden=hidden, passthrough=passthrough, seed=2))
    slopes, heights = affine_pieces(model.conic_form())
    x = 5 * torch.randn(2000, n, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    close((x @ slopes.mT + heights).amax(-1), model(x).detach(), VALUE)
    assert torch.unique(slopes, dim=0).shape[0] <= 2 ** sum(hidden)


def test_pieces_on_a_box_are_those_that_are_needed_there() -> None:
    model = shaken(ReLUICNN(2, hidden=(6,), seed=3))
    everywhere, box = affine_pieces(model.conic_form()), affine_pieces(model.conic_form(), Box(2, -0.2, 0.2))
    assert box[0].shape[0] < everywhere[0].shape[0]
    x = 0.4 * torch.rand(2000, 2, dtype=DOUBLE) - 0.2
    close((x @ box[0].mT + box[1]).amax(-1), model(x).detach(), VALUE)


def test_pieces_of_an_imported_maximum_are_its_own() -> None:
    """Two functions of a maximum that is attained by all of its pieces somewhere."""
    angles = torch.arange(7, dtype=DOUBLE)
    slopes = torch.stack([torch.cos(angles), torch.sin(angles)], dim=-1)
    found, heights = affine_pieces(from_max_affine(slopes, torch.zeros(7, dtype=DOUBLE)).conic_form())
    assert float(heights.abs().max()) <= VALUE[DOUBLE]
    distance = torch.cdist(slopes, found).amin(dim=1)
    assert float(distance.max()) <= 1e-9


def test_pieces_beside_large_numbers_are_kept_apart() -> None:
    f = from_max_affine([[1e-3], [-1e-3]], [1e9, 1e9])
    assert len(affine_pieces(f.conic_form())[0]) == 2


def test_what_has_no_pieces_is_refused() -> None:
    with pytest.raises(ValueError, match="a ball of radius 1e-09 fits"):
        affine_pieces(from_max_affine([[1.0], [-1.0]], [0, 0]).conic_form(), Box(1, 0.0, 1e-9))
    with pytest.raises(ValueError, match="not piecewise affine"):
        affine_pieces(MODELS["soc"](n).conic_form(torch.zeros(3)))
    with pytest.raises(ValueError, match="limit=10"):
        affine_pieces(ReLUICNN(n, hidden=(8, 8), seed=1).conic_form(), limit=10)
    with pytest.raises(ValueError, match="expected bounds and inequalities"):
        affine_pieces(ReLUICNN(n).conic_form(), Simplex(n))
    with pytest.raises(ValueError, match="one function"):
        affine_pieces(ReLUICNN(n, 2).conic_form(torch.zeros(2, 2)))


@pytest.mark.parametrize(
    ("slopes", "heights"),
    [([[1e-10], [-1e-10]], [0.0, 0.0]), ([[1e-3], [-1e-3]], [1e7, 0.0]), ([[1.0], [-1.0]], [1e10, -1e10])],
)
def test_pieces_of_small_slopes_are_pieces(slopes: list[list[float]], heights: list[float]) -> None:
    """Far from the origin both count, however small they are beside the heights."""
    found, levels = affine_pieces(from_max_affine(slopes, heights).conic_form())
    assert sorted(found.flatten().tolist()) == pytest.approx(sorted(slope for (slope,) in slopes), rel=1e-12)
    assert sorted(levels.tolist()) == pytest.approx(sorted(heights), rel=1e-12)


@pytest.mark.parametrize("name", ["recurrent", "convolutional"])
def test_networks_over_windows_have_pieces(name: str) -> None:
    models = {
        "recurrent": lambda: RecurrentSOCICNN(2, 1, 0, variant="relu", hidden=2, seed=1),
        "convolutional": lambda: ConvSOCICNN((1, 3), 0, variant="relu", layers=(1,), seed=1),
    }
    model = models[name]()
    slopes, heights = affine_pieces(model.conic_form())
    x = torch.randn(200, model.dim, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    torch.testing.assert_close((x @ slopes.mT + heights).amax(dim=-1), model(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "make", [lambda: ConvSOCICNN((2, 3), 0, layers=(2,), seed=1), lambda: RecurrentSOCICNN(3, 2, 0, hidden=2, seed=1)]
)
def test_models_over_windows_are_exported_in_single_precision_and_go_on(make, tmp_path) -> None:
    """What they keep between calls was made by the exporter, if that was the first to call them."""
    from soctk.maps import windows

    for part in vars(windows).values():
        if hasattr(part, "cache_clear"):
            part.cache_clear()
    model = make()
    with pytest.raises(NotImplementedError, match="double precision"):
        to_onnx(model, tmp_path / "model.onnx")
    single = make().float()
    to_onnx(single, tmp_path / "model.onnx")
    x = torch.rand(5, model.dim, generator=torch.Generator().manual_seed(0))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (value,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(value, single(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(x.double()).float(), single(x), rtol=1e-4, atol=1e-5)
    assert minimize(make(), Box(model.dim)).status[()] == "optimal"
