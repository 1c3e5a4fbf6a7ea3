"""P1-ICKAN: its edges are what the paper says, and the ReLU network it is turned into is the same function."""

from __future__ import annotations

from typing import ClassVar

import cvxpy as cp
import numpy as np
import pytest
import torch
from surrogate_contract import SurrogateContract, inputs
from tolerances import CLARABEL, DOUBLE, INEQUALITY, VALUE, close, size
from zoo import shaken

import soctk
from soctk.terms import Network
from soctk_baselines import ICKAN


class TestICKAN(SurrogateContract):
    CASES: ClassVar = {
        "one_hidden_layer": lambda: ICKAN(4, 2, hidden=(5,), segments=4),
        "three_hidden_layers": lambda: ICKAN(3, 2, hidden=(4, 3, 2), segments=3),
        "no_context": lambda: ICKAN(3, hidden=(4, 2)),
        "smallest": lambda: ICKAN(2, 1, hidden=(1,), segments=2, ridges=0, affine_hidden=0),
        "one_dimension": lambda: ICKAN(1, 1, hidden=(3,)),
    }


CASES = pytest.mark.parametrize("hidden", [(5,), (4, 3), (3, 4, 2)])


def moved(hidden: tuple[int, ...], context_dim: int = 2) -> ICKAN:
    """Return a model with every weight and the range away from their start."""
    model = ICKAN(4, context_dim, hidden=hidden, segments=5, seed=1)
    model.set_range(torch.tensor([-2.0, -1.5, -1.0, -3.0]), torch.tensor([1.0, 2.0, 0.5, 3.0]))
    shaken(model, 0.5)
    return model


def by_segments(model: ICKAN, x: np.ndarray, shifts: list[np.ndarray]) -> float:
    """Return the value of the edges by interpolation between vertices, without v and b0: the paper's layers."""
    u = x
    for level, (knots, edges) in enumerate(zip(model.knots, [*model.edges, None], strict=True)):
        u = u + shifts[level]
        t = knots.vertices(*model.intervals()[level]).detach().numpy()
        if edges is not None:
            slope, increments = (part.detach().numpy() for part in edges.coefficients())
        else:
            none = torch.zeros(1, 0, dtype=DOUBLE)
            slope, increments = (part(none)[0].detach().numpy() for part in (model.read_slope, model.read_increments))
        increments = increments.reshape(len(slope), len(u), -1)
        slopes = slope[..., None] + np.concatenate([np.zeros_like(slope)[..., None], increments.cumsum(-1)], axis=-1)
        # Each edge passes through slope * t_0 at its first vertex and has slope `slopes[p]` on segment p.
        segment = [int(np.searchsorted(t[i, 1:-1], u[i])) for i in range(len(u))]
        u = np.array(
            [
                sum(
                    slope[k, i] * t[i, 0]
                    + slopes[k, i, : segment[i]] @ np.diff(t[i])[: segment[i]]
                    + slopes[k, i, segment[i]] * (u[i] - t[i, segment[i]])
                    for i in range(len(u))
                )
                for k in range(len(slope))
            ]
        )
    return float(u[0])


@CASES
def test_the_value_is_that_of_composed_piecewise_linear_edges(hidden):
    model = moved(hidden, context_dim=0)
    with torch.no_grad():
        for weight in model.affine.parameters():
            weight.zero_()
    none = [np.zeros(width) for width in (4, *hidden)]
    for row in 3 * torch.randn(10, 4, generator=torch.Generator().manual_seed(2), dtype=DOUBLE):
        assert float(model(row).detach()) == pytest.approx(by_segments(model, row.numpy(), none), rel=1e-12)


@CASES
def test_the_conic_form_is_one_network_with_the_models_value(hidden):
    model = moved(hidden)
    x, context = inputs(model, 50, scale=3.0)
    form = model.conic_form(context)
    (term,) = form.terms
    assert isinstance(term, Network)
    assert len(term.mixing) == len(hidden)
    close(form.value(x), model(x, context), VALUE)


@CASES
def test_the_lift_has_the_models_value(hidden):
    """min c'z over the LP's z >= W x + U z + b, z >= 0 at a fixed x, and the same as nested maxima."""
    model = moved(hidden)
    x, context = inputs(model, 2, scale=2.0)
    for row in range(2):
        value = float(model(x[row], context[row]).detach())
        form = model.conic_form(context[row])
        term = form.network
        data = {name: tensor[0].detach().numpy() for name, tensor in term.coefficients().items()}
        u = cp.Variable(len(data["offset"]))
        objective, constraints = term.epigraph(u, data)
        fixed = u == data["A"] @ x[row].numpy() + data["offset"]
        lift = cp.Problem(cp.Minimize(objective), [*constraints, fixed]).solve(solver="CLARABEL")
        affine = float((form.constant[0, 0] + form.linear[0, 0] @ x[row]).detach())
        assert lift + affine == pytest.approx(value, rel=CLARABEL, abs=CLARABEL)


@CASES
@torch.no_grad()
def test_later_layers_never_fall(hidden):
    """Raising the inputs of a layer after the first, inside its interval or far outside, lowers no node."""
    model = moved(hidden)
    none = torch.zeros(1, 2, dtype=DOUBLE)
    last = (model.read_slope(none)[0], model.read_increments(none)[0])
    layers = [*(edges.coefficients() for edges in model.edges[1:]), last]
    for t, (low, high), (slope, increments) in zip(
        model.interior_knots()[1:], model.intervals()[1:], layers, strict=True
    ):
        u = low + (high - low) * (3 * torch.rand(500, len(low), dtype=DOUBLE) - 1)
        raised = u + torch.rand(500, len(low), dtype=DOUBLE) * (high - low)
        nodes = [v @ slope.mT + torch.relu(v.unsqueeze(-1) - t).flatten(-2) @ increments.mT for v in (u, raised)]
        assert float((nodes[1] - nodes[0]).min()) > 0


@CASES
def test_knots_stay_ordered_and_inside_the_interval_whatever_the_weights(hidden):
    model = moved(hidden)
    with torch.no_grad():
        for knots in model.knots:
            knots.lengths.mul_(10.0)
    for t, (low, high) in zip(model.interior_knots(), model.intervals(), strict=True):
        assert bool((t.diff(dim=-1) >= 0).all())
        assert bool((t >= low.unsqueeze(-1)).all())
        assert bool((t <= high.unsqueeze(-1)).all())


@CASES
@torch.no_grad()
def test_the_intervals_hold_every_value_of_their_layer(hidden):
    """Over the box of the first layer's intervals, and both ends of the second layer's are taken at its corners."""
    model = moved(hidden, context_dim=0)
    low, high = model.intervals()[0]
    u = low + (high - low) * torch.rand(2000, 4, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    for level, edges in enumerate(model.edges):
        t = model.interior_knots()[level]
        slope, increments = edges.coefficients()
        u = u @ slope.mT + torch.relu(u.unsqueeze(-1) - t).flatten(-2) @ increments.mT
        least, largest = model.intervals()[level + 1]
        slack = INEQUALITY[DOUBLE] * size(u)
        assert bool((u >= least - slack).all())
        assert bool((u <= largest + slack).all())


def test_outside_the_interval_the_outer_segments_go_on():
    """f is affine along a ray beyond every knot."""
    model = moved((4, 3))
    _, context = inputs(model)
    direction = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=DOUBLE)
    far = model(torch.stack([step * direction for step in (1e3, 2e3, 3e3)]), context).detach()
    assert float(far[0] - 2 * far[1] + far[2]) == pytest.approx(0.0, abs=1e-9 * float(far.abs().max()))


def test_fitting_takes_the_datas_range_and_one_that_does_not_vary():
    x = torch.rand(1, 200, 3, dtype=DOUBLE) * torch.tensor([1.0, 4.0, 0.0], dtype=DOUBLE)
    data = soctk.ValueData(torch.zeros(1, 0), x, x.abs().sum(dim=-1))
    model = ICKAN(3, hidden=(2,))
    soctk.fit(model, data, soctk.FitConfig(starts=1, epochs=1, lbfgs_iterations=2), validation=data)
    ends = [end * model.x_scale + model.x_mean for end in (model.range_low, model.range_high)]
    torch.testing.assert_close(ends[0], x[0].amin(dim=0))
    torch.testing.assert_close(ends[1][:2], x[0].amax(dim=0)[:2])
    assert float(model.range_high[2] - model.range_low[2]) == 1.0


def test_it_learns_its_papers_target_within_a_percent():
    """Separable and piecewise linear but for a quadratic: what these edges are for."""
    from soctk_tasks import make_target

    data = make_target("ICKANPaperTarget", 3).sample({"train": 1500, "validation": 400, "test": 400})
    model = ICKAN(3, hidden=(4,), segments=8)
    config = soctk.FitConfig(starts=1, epochs=20, batch_rows=250, lbfgs_iterations=150)
    soctk.fit(model, data["train"], config, validation=data["validation"])
    assert soctk.losses.relative_error(model, data["test"]) < 0.01


def test_save_and_load_keep_the_range(tmp_path):
    model = moved((4, 3))
    x, context = inputs(model, 20)
    soctk.save(model, tmp_path / "model")
    loaded = soctk.load(tmp_path / "model")
    assert torch.equal(loaded(x, context), model(x, context))
    assert torch.equal(loaded.range_low, model.range_low)


@pytest.mark.parametrize(
    ("part", "name"),
    [("slope", "network.U3"), ("increments", "network.U2"), ("read", "network.c")],
)
def test_a_negative_weight_is_refused_by_name(part, name, monkeypatch):
    model = moved((4, 3))
    if part == "read":
        monkeypatch.setattr(model.read_slope, "forward", lambda context: -torch.ones(len(context), 1, 3, dtype=DOUBLE))
    else:
        layer = model.edges[1 if part == "slope" else 0]
        slope, increments = (tensor.detach().clone() for tensor in layer.coefficients())
        (slope if part == "slope" else increments)[0, 0] = -0.1
        monkeypatch.setattr(layer, "coefficients", lambda: (slope, increments))
    _, context = inputs(model, 2)
    with pytest.raises(ValueError, match=rf"^{name}: expected non-negative"):
        model.conic_form(context)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": ()}, "hidden: expected at least one width"),
        ({"hidden": (3, 0)}, "hidden: expected an integer of at least 1"),
        ({"segments": 1}, "segments: expected an integer of at least 2"),
    ],
)
def test_bad_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ICKAN(3, **options)


def test_the_registered_name_and_the_smallest_size():
    if "ickan" not in soctk.surrogate_names():
        pytest.skip("the project is not installed anew, so the name is not registered")
    default = soctk.make_surrogate("ickan", 10, 8)
    assert isinstance(default, ICKAN)
    wanted = default.parameter_count - 1
    assert soctk.make_surrogate("ickan", 10, 8, max_parameters=wanted).parameter_count <= wanted
    with pytest.raises(ValueError, match="max_parameters: expected at least"):
        soctk.make_surrogate("ickan", 10, 8, max_parameters=5)
