"""The rivals: each is what it claims to be, and none is less than its real package."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

import soctk
from soctk_baselines import (
    DCP,
    ICKAN,
    PCF,
    AffinePolicy,
    ConstantDecision,
    CvxpyLayerDecider,
    CvxpyLayers,
    PCFTemplate,
    QuadraticRegression,
)

needs_lpcf = pytest.mark.skipif(importlib.util.find_spec("lpcf") is None, reason='needs the extra "pcf"')
SURROGATES = {
    "dcp": lambda: DCP(4, 3, logistics=3, norms=(4, 2), seed=1),
    "dcp shared slope": lambda: DCP(4, 3, slope_hidden=5, seed=1),
    "dcp context units": lambda: DCP(4, 3, context_units=5, seed=1),
    "ickan context units": lambda: ICKAN(4, 3, hidden=(5, 3), segments=4, context_units=5, seed=1),
    "pcf shared slope": lambda: PCF(4, 3, widths=(5, 4), widths_psi=(6,), affine=True, slope_hidden=5, seed=1),
    "pcf": lambda: PCF(4, 3, widths=(5, 4), widths_psi=(6,), seed=1),
    "pcf affine": lambda: PCF(4, 3, widths=(5, 4), widths_psi=(6,), affine=True, seed=1),
    "pcf template": lambda: PCFTemplate(4, 3, norms=(3, 2), seed=1),
    "pcf logistic quadratic": lambda: PCF(4, 3, widths_psi=(6,), activation="logistic", quadratic=True, seed=1),
    "ickan": lambda: ICKAN(4, 3, hidden=(5, 3), segments=4, seed=1),
    "quadratic": lambda: fitted_quadratic(),
}


def quadratic_data(convex: bool = True, noise: float = 0.0) -> tuple[soctk.ValueData, np.ndarray]:
    """Values of 1/2 x'Qx + (q + C theta)'x + theta'R theta, and Q."""
    rng = np.random.default_rng(0)
    root = rng.standard_normal((4, 4))
    Q = root @ root.T if convex else root @ np.diag([2.0, 1.0, 0.5, -1.5]) @ root.T
    q, C, R = rng.standard_normal(4), rng.standard_normal((4, 3)), rng.standard_normal((3, 3))
    theta, x = rng.standard_normal((60, 3)), rng.standard_normal((60, 30, 4))
    value = 0.5 * np.einsum("nmi,ij,nmj->nm", x, Q, x) + np.einsum("nmi,ni->nm", x, q + theta @ C.T)
    value = value + np.einsum("ni,ij,nj->n", theta, R, theta)[:, None] + noise * rng.standard_normal(value.shape)
    return soctk.ValueData(theta, x, value), Q


def fitted_quadratic() -> QuadraticRegression:
    """A quadratic fitted to data whose best quadratic is not convex: the projection is at work."""
    model = QuadraticRegression(4, 3)
    soctk.fit(model, quadratic_data(convex=False)[0])
    return model


@pytest.mark.parametrize("name", SURROGATES)
class TestContract:
    """Convexity, exports and decisions of every baseline surrogate."""

    def make(self, name: str) -> tuple[soctk.ConvexSurrogate, torch.Tensor]:
        return SURROGATES[name](), torch.randn(6, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def test_convex_along_segments(self, name):
        model, context = self.make(name)
        a, b = torch.randn(2, 6, 4, dtype=torch.float64)
        share = torch.rand(6, 1, dtype=torch.float64)
        between = model(share * a + (1 - share) * b, context)
        chord = share[:, 0] * model(a, context) + (1 - share[:, 0]) * model(b, context)
        assert (between <= chord + 1e-10 * (1 + chord.abs())).all()

    def test_forward_is_the_cvxpy_value(self, name):
        model, context = self.make(name)
        for row in context[:3]:
            point = torch.randn(4, dtype=torch.float64)
            x = cp.Variable(4)
            problem = cp.Problem(cp.Minimize(model.to_cvxpy(x, row)), [x == point.numpy()])
            problem.solve(solver="CLARABEL")
            assert problem.value == pytest.approx(float(model(point, row).detach()), rel=1e-6, abs=1e-6)

    def test_newton_agrees_with_clarabel(self, name):
        model, context = self.make(name)
        for feasible_set in (soctk.Simplex(4), soctk.Box(4), soctk.Budget(4, 1.3)):
            ours = soctk.minimize(model, feasible_set, context, method="newton")
            theirs = soctk.minimize(model, feasible_set, context, method="cvxpy", tol=1e-5)
            assert (ours.status == "optimal").all()
            torch.testing.assert_close(ours.value, theirs.value, rtol=1e-5, atol=1e-5)

    def test_save_and_load(self, name, tmp_path):
        model, context = self.make(name)
        soctk.save(model, tmp_path / "model")
        x = torch.randn(6, 4, dtype=torch.float64)
        assert torch.equal(soctk.load(tmp_path / "model")(x, context), model(x, context))

    def test_weights_of_float32_take_points_and_contexts_of_either_precision(self, name):
        model, context = self.make(name)
        model, x = model.float(), torch.randn(6, 4, dtype=torch.float64)
        values = [model(x, context), model(x, context.float()), model(x.float(), context)]
        assert [value.dtype for value in values] == [torch.float64, torch.float64, torch.float32]
        for value in values:
            torch.testing.assert_close(value.double(), model(x.float(), context.float()).double(), rtol=1e-5, atol=1e-5)


def test_the_template_has_the_papers_number_of_weights():
    assert [PCFTemplate(n, 8).parameter_count for n in (10, 20, 50)] == [753, 1263, 2793]


def test_the_templates_values_are_its_formula():
    model = PCFTemplate(4, 3, norms=(3, 2), seed=1).requires_grad_(False)
    context, x = torch.randn(1, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    affine = {name: (part.slope @ context[0] + part.constant) for name, part in (("m", model.m), ("q", model.q))}
    softplus = torch.nn.functional.softplus
    value = model.affine.level(context)[0, 0, 0] + model.affine.slope(context)[0, 0] @ x
    value = value + 0.5 * ((softplus(affine["q"]) + 1e-8) * (x - affine["m"]).square()).sum()
    lam = softplus(model.lam(context))[0, 0] + 1e-8
    for k, (matrix, offset) in enumerate(zip(model.A, model.d, strict=True)):
        value = value + lam[k] * (matrix @ x + offset(context)[0, 0]).norm()
    assert float(model(x, context[0])) == pytest.approx(float(value), rel=1e-12)


def test_least_squares_recovers_a_convex_quadratic():
    data, Q = quadratic_data()
    model = QuadraticRegression(4, 3)
    soctk.fit(model, data)
    predicted = model.evaluate(data.x, data.context)
    assert float((predicted - data.value).abs().max()) < 1e-6 * float(data.value.abs().max())
    form = model.conic_form(data.context[:1])
    (term,) = form.quadratics
    hessian = (term.map.matrix[0].mT * term.weights[0, 0]) @ term.map.matrix[0]
    np.testing.assert_allclose(hessian.detach().numpy(), Q, rtol=0, atol=1e-5 * np.abs(Q).max())


def test_least_squares_under_the_convexity_constraint_is_optimal():
    """No convex quadratic of a cvxpy fit of the same features does better on the training values."""
    data, _ = quadratic_data(convex=False)
    model = QuadraticRegression(4, 3)
    soctk.fit(model, data, validation=data)
    ours = float((model.evaluate(data.x, data.context) - data.value).square().mean())
    Q, q, C = cp.Variable((4, 4), PSD=True), cp.Variable(4), cp.Variable((4, 3))
    R, r, r0 = cp.Variable((3, 3), symmetric=True), cp.Variable(3), cp.Variable()
    x, theta = data.x.reshape(-1, 4).numpy(), data.context.repeat_interleave(30, dim=0).numpy()
    outer = np.einsum("ni,nj->nij", x, x).reshape(-1, 16)
    cross = np.einsum("ni,nj->nij", x, theta).reshape(-1, 12)
    level = np.einsum("ni,nj->nij", theta, theta).reshape(-1, 9)
    fitted = 0.5 * outer @ cp.vec(Q, order="C") + x @ q + cross @ cp.vec(C, order="C")
    fitted = fitted + level @ cp.vec(R, order="C") + theta @ r + r0
    problem = cp.Problem(cp.Minimize(cp.sum_squares(fitted - data.value.flatten().numpy()) / x.shape[0]))
    problem.solve(solver="CLARABEL")
    assert ours == pytest.approx(problem.value, rel=1e-4)


class NoForm(soctk.ConvexSurrogate):
    """Known by its values alone."""

    def _value(self, x, context):
        return x.square().sum(dim=-1)


class TestPolicies:
    feasible_set = soctk.Box(3)

    def test_constant_is_the_mean(self):
        context, optima = torch.randn(50, 2, dtype=torch.float64), self.feasible_set.sample(50)
        policy = ConstantDecision(self.feasible_set).fit(context, optima)
        torch.testing.assert_close(policy.decide(context[:4].double()), optima.mean(dim=0).expand(4, 3))

    def test_affine_recovers_an_affine_rule(self):
        context = torch.rand(50, 2, dtype=torch.float64)
        optima = context @ torch.tensor([[0.3, 0.1, 0.2], [0.2, 0.4, 0.0]], dtype=torch.float64) + 0.1
        policy = AffinePolicy(self.feasible_set).fit(context, optima)
        torch.testing.assert_close(policy.decide(context), optima)

    def test_decisions_are_feasible(self):
        context, optima = torch.randn(50, 2, dtype=torch.float64), self.feasible_set.sample(50)
        far = AffinePolicy(self.feasible_set).fit(context, optima).decide(100 * context)
        assert self.feasible_set.contains(far).all()

    @pytest.mark.parametrize("kind", [ConstantDecision, AffinePolicy])
    def test_decisions_have_the_precision_of_the_contexts(self, kind):
        context, optima = torch.rand(50, 2, dtype=torch.float64), self.feasible_set.sample(50)
        policy = kind(self.feasible_set).fit(context.float(), optima)
        single, double = policy.decide(context.float()), policy.decide(context)
        assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
        torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-5)

    def test_unfitted_policy_says_so(self):
        with pytest.raises(RuntimeError, match="fit"):
            ConstantDecision(self.feasible_set).decide(torch.zeros(1, 2))


class TestCvxpyLayer:
    """The DCP through a real cvxpylayers layer."""

    def test_decisions_agree_with_newton(self):
        model, feasible_set = DCP(4, 3, seed=2), soctk.Budget(4, 1.5)
        context = torch.randn(5, 3, dtype=torch.float64)
        layer = CvxpyLayerDecider(model, feasible_set, tol=1e-4).decide(context)
        newton = soctk.minimize(model, feasible_set, context)
        assert (layer.status == "optimal").all()
        torch.testing.assert_close(layer.value, newton.value, rtol=1e-5, atol=1e-5)

    def test_it_is_a_method_of_minimize(self):
        model, feasible_set = DCP(4, 3, seed=2), soctk.Budget(4, 1.5)
        context = torch.randn(5, 3, dtype=torch.float64)
        decision = soctk.minimize(model, feasible_set, context, tol=1e-4, method=CvxpyLayers())
        assert (decision.status == "optimal").all()
        assert set(decision.solver) == {"cvxpylayers"}
        with pytest.raises(NotImplementedError, match="conic form"):
            soctk.minimize(NoForm(4), feasible_set, tol=1e-4, method=CvxpyLayers())

    def test_gradient_reaches_context_and_weights(self):
        model, feasible_set = DCP(3, 2, seed=2), soctk.Simplex(3)
        decider = CvxpyLayerDecider(model, feasible_set)
        context = torch.randn(1, 2, dtype=torch.float64)
        direction, step = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), 1e-4
        leaf = context.clone().requires_grad_()
        (decider.layer(leaf) @ direction).sum().backward()

        def decide(c: torch.Tensor) -> torch.Tensor:
            return soctk.minimize(model, feasible_set, c, tol=1e-10).x[0] @ direction

        for k in range(2):
            shift = torch.zeros_like(context)
            shift[0, k] = step
            slope = (decide(context + shift) - decide(context - shift)) / (2 * step)
            assert float(leaf.grad[0, k]) == pytest.approx(float(slope), rel=1e-2, abs=1e-4)
        moved = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
        assert {"a", "beta.floor", "A.0", "d.0.constant", "affine.slope.constant"} <= moved

    def test_one_bad_instance_is_marked_and_its_neighbours_are_safe(self):
        model, feasible_set = DCP(3, 2, seed=2), soctk.Simplex(3)
        decider = CvxpyLayerDecider(model, feasible_set, tol=1e-4)
        solve, calls = decider._solve_one, iter(range(10))
        # The second instance's coefficients are poisoned on their way into the layer.
        decider._solve_one = lambda layer, values: solve(
            layer, [v * torch.nan for v in values] if next(calls) == 1 else values
        )
        decision = decider.decide(torch.randn(3, 2, dtype=torch.float64))
        assert list(decision.status) == ["optimal", "failed", "optimal"]
        assert torch.isnan(decision.x[1]).all()
        assert torch.isfinite(decision.x[[0, 2]]).all()

    def test_an_iteration_limit_is_never_called_optimal(self):
        decider = CvxpyLayerDecider(
            DCP(3, 2, seed=2), soctk.Simplex(3), solver_args={"solve_method": "Clarabel", "max_iter": 1}
        )
        decision = decider.decide(torch.randn(2, 2, dtype=torch.float64))
        assert not (decision.status == "optimal").any()
        with pytest.raises(ValueError, match="context"):
            decider.decide(torch.full((1, 2), torch.nan))


@needs_lpcf
@pytest.mark.parametrize("quadratic", [False, True])
def test_pcf_is_lpcfs_network(quadratic):
    """lpcf's fitted weights in `pcf` give lpcf's own values to 1e-8."""
    import lpcf.pcf

    rng = np.random.default_rng(0)
    x, theta = rng.standard_normal((80, 3)), rng.standard_normal((80, 2))
    y = (x**2).sum(axis=1) + (x * theta[:, :1]).sum(axis=1)
    real = lpcf.pcf.PCF(widths=[4, 5], widths_psi=[6, 7], activation="relu", quadratic=quadratic)
    real.fit(y, x, theta, seeds=np.array([0]), cores=1, adam_epochs=20, lbfgs_epochs=20)
    ours = PCF(3, 2, widths=(4, 5), widths_psi=(6, 7), quadratic=quadratic)
    ours.load_lpcf([np.asarray(array) for array in real.model.params])
    expected = np.asarray(real.predict(x, theta))[:, 0]
    np.testing.assert_allclose(ours(x, theta).detach().numpy(), expected, rtol=0, atol=1e-8 * np.abs(expected).max())


@needs_lpcf
def test_lpcf_surrogate_trains_and_decides_by_its_own_export():
    from soctk_baselines.lpcf_surrogate import LPCF

    data, _ = quadratic_data()
    model = LPCF(4, 3, widths_psi=((2,), (6,)), adam_epochs=50, lbfgs_epochs=50, starts=2)
    soctk.fit(model, data)
    assert model.network.widths_psi in {(2,), (6,)}
    assert model.parameter_count == model.network.parameter_count
    feasible_set = soctk.Box(4)
    own = soctk.minimize(model, feasible_set, data.context[:3], tol=1e-4)
    newton = soctk.minimize(model, feasible_set, data.context[:3], method="newton")
    assert (own.status == "optimal").all()
    torch.testing.assert_close(own.value, newton.value, rtol=1e-5, atol=1e-5)


def small_lpcf(dim: int = 4, context_dim: int = 3, **more: Any) -> soctk.ConvexSurrogate:
    from soctk_baselines.lpcf_surrogate import LPCF

    return LPCF(dim, context_dim, widths_psi=((2,), (3,)), adam_epochs=5, lbfgs_epochs=5, starts=2, **more)


@needs_lpcf
def test_lpcf_is_saved_copied_and_exported_with_the_weights_that_it_has(tmp_path: Path) -> None:
    data, _ = quadratic_data()
    model = small_lpcf()
    soctk.fit(model, data)
    soctk.save(model, tmp_path / "lpcf.safetensors")
    context, x = data.context[0], cp.Variable(4)
    for other in (soctk.load(tmp_path / "lpcf.safetensors"), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.config() == model.config()
        torch.testing.assert_close(other(data.x, data.context), model(data.x, data.context), rtol=0, atol=0)
        cp.Problem(cp.Minimize(other.to_cvxpy(x, context)), [x == 0.3]).solve(solver=cp.CLARABEL)
        value = float(cp.sum(other.to_cvxpy(x, context)).value)
        assert value == pytest.approx(float(model(x.value, context).detach()), rel=1e-6)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.3)
    x.value = np.full(4, 0.3)
    assert float(model.to_cvxpy(x, context).value) == pytest.approx(float(model(x.value, context).detach()), rel=1e-6)


@needs_lpcf
def test_lpcf_ends_between_runs_once_it_is_told_to() -> None:
    """With all runs made one by one the outcome is that of lpcf's own race."""
    data, _ = quadratic_data()
    whole, one_by_one, asked = small_lpcf(), small_lpcf(), []

    def after(runs: int) -> Callable[[], bool]:
        asked.clear()
        return lambda: asked.append(None) or len(asked) > runs

    assert soctk.fit(whole, data).status == "iteration_limit"
    soctk.fit(one_by_one, data, stop=lambda: False)
    torch.testing.assert_close(one_by_one.state_dict(), whole.state_dict(), rtol=0, atol=0)
    for runs in (0, 1, 3):
        model = small_lpcf()
        assert soctk.fit(model, data, stop=after(runs)).status == "stopped"
        assert bool(model(data.x, data.context).isfinite().all())


@needs_lpcf
def test_lpcf_without_a_context() -> None:
    x = torch.randn(1, 200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = small_lpcf(3, 0)
    soctk.fit(model, soctk.ValueData(torch.zeros(1, 0), x, x.square().sum(-1)))
    found = soctk.minimize(model, soctk.Box(3), tol=1e-4)
    assert found.status == "optimal"


@pytest.mark.skipif(importlib.util.find_spec("lpcf") is not None, reason="only without the extra")
def test_missing_lpcf_names_the_extra():
    with pytest.raises(ImportError, match=r'pip install "soctk\[pcf\]"'):
        soctk.make_surrogate("lpcf", 3, 2)


def test_importing_the_baselines_does_not_need_jax():
    code = "import sys, soctk, soctk_baselines; sys.exit('jax' in sys.modules or 'lpcf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["soc", "relu", "quad", "norm", "dcp", "ickan"])
def test_a_small_limit_costs_the_shared_layer_first(name: str) -> None:
    """And not all that a model is made of besides."""
    limit = 3200
    found = soctk.make_surrogate(name, 10, 8, max_parameters=limit).parameter_count
    assert 0.75 * limit < found <= limit


def test_where_cvxpylayers_fails_nothing_is_said_of_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    decider = CvxpyLayerDecider(soctk.SOCICNN(2, context_dim=1, hidden=(4,)), soctk.Polyhedron(2, -1.0, 1.0))
    monkeypatch.setattr(CvxpyLayerDecider, "_solve_one", lambda *_: None)
    decision = decider.decide(torch.zeros(1, 1, dtype=torch.float64))
    assert decision.status[0] == "failed"
    assert bool(torch.isnan(decision.violation).all())
