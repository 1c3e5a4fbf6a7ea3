"""A term in one file of its own is decided at compiled speed, saved, loaded and imported like ours."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import cvxpy as cp
import numpy as np
import pytest
import squared_hinge
import torch
from pinball import Pinball
from squared_hinge import SquaredHinge
from tolerances import CERTIFIED, DOUBLE, VALUE

import soctk
from soctk import Budget, CheckpointError, ConicForm, ExactSurrogate, from_cvxpy, load, minimize, save
from soctk.decide.batched import solve_batched
from soctk.decide.compiled.dispatch import key_of
from soctk.decide.compiled.form import supported
from soctk.decide.compiled.solve import Region, solve_compiled
from soctk.maps.linear import DenseMap
from soctk.terms import Quadratic, SlowTermWarning, register, registry
from soctk.terms.registry import BUILT_IN

N, K, SIZE = 6, 9, 5
SET = Budget(N, 1.5)


@dataclass(frozen=True, eq=False)
class Unfinished(SquaredHinge):
    """The same term without a kernel of its own."""


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Forget afterwards which terms were registered and warned of."""
    names, slow = dict(registry._registered), set(registry._slow)
    yield
    registry._registered.clear()
    registry._registered.update(names)
    registry._slow.clear()
    registry._slow.update(slow)


def form_of(kind: type[SquaredHinge], size: int = SIZE) -> ConicForm:
    generator = torch.Generator().manual_seed(4)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=DOUBLE)

    hinge = kind(DenseMap(normal(1, K, N)), normal(size, 1, K), normal(size, 1, K).abs())
    quadratic = Quadratic(DenseMap(normal(1, 2, N)), normal(1, 1, 2), normal(1, 1, 2).abs())
    return ConicForm(normal(size, 1), normal(size, 1, N), (hinge, quadratic), () if size == 1 else (size,))


def test_it_is_decided_by_its_kernel_as_by_its_tensor_methods() -> None:
    form = form_of(SquaredHinge)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert supported(form)
    mine = solve_compiled(form, Region.of(SET), tol=CERTIFIED, max_iter=60)
    start = SET.center().expand(SIZE, -1).clone()
    other = solve_batched(form, SET, tol=CERTIFIED, max_iter=60, start=start)
    assert (mine.status == "optimal").all()
    assert (other.status == "optimal").all()
    scale = mine.value.abs().clamp(min=1.0)
    assert bool(((mine.value - other.value).abs() <= 2 * CERTIFIED * scale).all())
    assert bool((mine.lower_bound <= other.value + VALUE[DOUBLE] * scale).all())


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("feasible_set", [SET, soctk.Polyhedron(N, -1.0, 1.0, E=[[1.0] * N], f=[0.5])], ids=type)
def test_a_kernel_that_is_another_function_than_its_term_is_found_out(
    feasible_set, prepared, forgotten, monkeypatch
) -> None:
    """Its value and its bound meet all the same: both are the kernel's."""
    register(SquaredHinge)
    model, value = ExactSurrogate.of(form_of(SquaredHinge, 1)), SquaredHinge.value

    def decided() -> soctk.Decision:
        return soctk.prepare(model, feasible_set).minimize() if prepared else minimize(model, feasible_set)

    assert decided().optimal.all()
    monkeypatch.setattr(SquaredHinge, "value", lambda term, u: 2 * value(term, u))
    with pytest.raises(RuntimeError, match=r"different functions \(SquaredHinge\)"):
        decided()


def test_without_a_kernel_it_is_decided_in_pytorch_with_one_warning(forgotten: None) -> None:
    form = form_of(Unfinished, 1)
    with pytest.warns(SlowTermWarning, match="Unfinished has no compiled kernel"):
        assert not supported(form)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not supported(form)
        register(Unfinished)
        assert minimize(ExactSurrogate.of(form), SET, tol=CERTIFIED).status == "optimal"


class Quantiles(soctk.ConvexSurrogate):
    """sum_i (x_i - 1)^2 / 2 + w_i pinball(x_i - t_i), t = 1 + B theta: least at t_i between two ends, or at these."""

    TAU = 0.3

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.w = torch.nn.Parameter(torch.tensor([0.4, 0.8, 1.6], dtype=DOUBLE))

    def targets(self, context: torch.Tensor) -> torch.Tensor:
        return 1 + context @ torch.tensor([[0.5, -0.4, 0.3], [0.2, 0.6, -0.7]], dtype=DOUBLE)

    def _conic_form(self, context: torch.Tensor) -> ConicForm:
        eye, one = DenseMap(torch.eye(3, dtype=DOUBLE)[None]), torch.ones(1, 1, 3, dtype=DOUBLE)
        pinball = Pinball(eye, -self.targets(context).unsqueeze(1), self.w.expand(1, 1, 3), self.TAU)
        return ConicForm(one[..., 0] * 0, one * 0, (Quadratic(eye, -one, one), pinball), (len(context),))

    def config(self) -> dict:
        return {}

    def least(self, context: torch.Tensor) -> torch.Tensor:
        above = torch.maximum(self.targets(context), 1 - self.TAU * self.w)
        return torch.minimum(above, 1 + (1 - self.TAU) * self.w)


@pytest.mark.filterwarnings("ignore::soctk.terms.SlowTermWarning")
def test_derivatives_at_kinks_of_a_term_without_dual_iterates(forgotten) -> None:
    """Those of the closed form: x moves with the kink that it rests at, where the slope of the minimum is the dual."""
    model, layer = Quantiles(), soctk.DecisionLayer(Quantiles(), soctk.Box(3, -9, 9))
    context = torch.randn(40, 2, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    weights = torch.randn(40, 3, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    found, expected = [], []
    for derivatives, function, minimum in (
        (found, layer.model, (layer, layer.optimal_value)),
        (expected, model, (model.least, lambda rows: model(model.least(rows), rows))),
    ):
        for number, make in enumerate(minimum):
            rows = context.clone().requires_grad_()
            made = make(rows)
            total = (made * weights).sum() if number == 0 else (made * weights[:, 0]).sum()
            derivatives += [made.detach(), *torch.autograd.grad(total, [rows, function.w])]
    assert float((expected[1] != 0).any(dim=1).double().mean()) > 0.5  # at kinks
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)  # one is within 1e-5 of another kink


def test_files_keep_it_where_it_is_registered(forgotten: None, tmp_path: Path) -> None:
    form = form_of(SquaredHinge, 1)
    with pytest.raises(ValueError, match=r"expected a registered term .*Huber.*, got 'SquaredHinge'"):
        ExactSurrogate.of(form)
    register(SquaredHinge)
    save(ExactSurrogate.of(form), tmp_path / "model")
    x = torch.randn(7, N, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    assert torch.equal(load(tmp_path / "model")(x), form.value(x))
    del registry._registered["SquaredHinge"]
    with pytest.raises(CheckpointError, match=r"expected a registered term .*, got 'SquaredHinge'"):
        load(tmp_path / "model")


def test_it_is_found_in_a_cvxpy_expression(forgotten: None) -> None:
    rng, x = np.random.default_rng(0), cp.Variable(N)
    expression = 3 * cp.sum(cp.square(cp.pos(rng.normal(size=(K, N)) @ x + rng.normal(size=K)))) + cp.sum_squares(x)
    with pytest.raises(ValueError, match="no exact counterpart"):
        from_cvxpy(expression, x)
    register(SquaredHinge)
    model = from_cvxpy(expression, x)
    assert {type(term) for term in model.conic_form().terms} == {SquaredHinge, Quadratic}
    x.value = rng.normal(size=N)
    assert float(model(torch.from_numpy(x.value))) == pytest.approx(float(expression.value), rel=1e-12)


def test_names_are_not_taken_twice() -> None:
    with pytest.raises(ValueError, match="Huber is taken"):
        register(type("Huber", (SquaredHinge,), {"__module__": "elsewhere"}))
    with pytest.raises(TypeError, match="derives from"):
        register(int)


def test_what_is_kept_on_disk_is_found_by_everything_that_it_was_made_of() -> None:
    """The same in another process; another one when a constant of the kernel, or a function it calls, is changed."""
    kinds = (*BUILT_IN, SquaredHinge)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(squared_hinge.__file__).parent)!r});"
        "from squared_hinge import SquaredHinge; from soctk.decide.compiled.dispatch import key_of;"
        "from soctk.terms.registry import BUILT_IN; print(key_of((*BUILT_IN, SquaredHinge)), key_of(BUILT_IN))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [key_of(kinds), key_of(BUILT_IN)] == [int(key) for key in found]
    assert len({key_of(kinds), key_of(BUILT_IN), key_of(changed(0.5)), key_of(changed(0.25))}) == 4
    assert key_of(changed(0.25)) == key_of(changed(0.25))


def changed(constant: float) -> tuple:
    """Return the kinds with a kernel whose value calls a function that uses a constant of its module."""
    module = {"HALF": constant}
    exec("def square(a):\n return HALF * a * a\ndef value(t, mu, reference):\n return square(t.u[0])", module)
    value = module["value"]
    assert isinstance(value, FunctionType)
    kernel = type(SquaredHinge.kernel)(value, squared_hinge.dual, squared_hinge.conjugate, squared_hinge.curvature)
    return (*BUILT_IN, type("Changed", (SquaredHinge,), {"kernel": kernel}))
