"""A prepared model decides as the model did, to the last bit, and nothing that becomes of the model changes that."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tolerances import CERTIFIED, DOUBLE, SINGLE, VALUE, close
from torch import nn
from zoo import MODELS, SETS, shaken

from soctk import (
    SOCICNN,
    Box,
    Budget,
    ConvexSurrogate,
    ConvSOCICNN,
    Decision,
    ExactSurrogate,
    Polyhedron,
    Simplex,
    certify,
    freeze,
    from_quadratic,
    minimize,
    prepare,
)
from soctk.decide.compiled.form import pack
from soctk.decide.newton import SmoothingNewton
from soctk.decide.packed_model import PackedModel
from soctk.decide.problem import Limits, Problem
from soctk_baselines import DCP

GENERATOR = torch.Generator().manual_seed(1)
MANY = torch.randn(40, 8, generator=GENERATOR, dtype=DOUBLE)  # enough for several side by side
CONTEXTS = MANY[:, :3]
BLOCKS = {"norms": (2, 3, 2), "quadratics": (2,), "diagonal": True, "hyperbolics": 2}
MAPPED: dict[str, Callable[[], ConvexSurrogate]] = {
    **{name: lambda name=name: MODELS[name](4) for name in MODELS if isinstance(MODELS[name](4), SOCICNN)},
    "additive": lambda: SOCICNN(4, 3, conditioning="additive", **BLOCKS),
    "no_context": lambda: SOCICNN(4, 0, affine_hidden=0, **BLOCKS),
    "shared_slope": lambda: SOCICNN(4, 3, slope_hidden=5, level_squares=True, diagonal_weights=True, **BLOCKS),
    "context_units": lambda: SOCICNN(4, 3, slope_hidden=2, level_squares=True, context_units=5, **BLOCKS),
    "units_alone": lambda: SOCICNN(4, 3, affine_hidden=0, ridges=0, context_units=5, **BLOCKS),
    "no_linear": lambda: SOCICNN(4, 3, linear=False, ridges=0, **BLOCKS),
    "switched_off": lambda: SOCICNN(4, 3, **BLOCKS, structures=[("diagonal", "norm0")]),
    "frozen": lambda: freeze(SOCICNN(4, 3, **BLOCKS)),
}
OTHERS: dict[str, Callable[[], ConvexSurrogate]] = {
    "ickan": lambda: MODELS["ickan"](4),
    "dcp": lambda: DCP(4, 3, seed=1),
    "exact": lambda: from_quadratic(torch.diag(torch.arange(1.0, 5.0, dtype=DOUBLE)), torch.ones(4, dtype=DOUBLE)),
    "exact_of": lambda: ExactSurrogate.of(MODELS["soc"](4).conic_form(CONTEXTS[0]).detach()),
    "convolution": lambda: ConvSOCICNN((2, 2), layers=(2, 2), quadratics=2, whole_norms=1, affine_hidden=2),
}


def with_units(model: ConvexSurrogate) -> ConvexSurrogate:
    if "frozen" not in type(model).__name__.lower():
        units = (MANY[0, : model.context_dim], MANY[1, : model.context_dim].abs()) if model.context_dim else None
        model.set_standardization(x=(0.4, torch.linspace(1.0, 2.0, model.dim)), value=(2.0, 3.0), context=units)
    return model


def rows_for(model: ConvexSurrogate) -> torch.Tensor | None:
    return MANY[:, : model.context_dim] if model.context_dim else None


def same(one: Decision, other: Decision) -> bool:
    parts = ("x", "value", "lower_bound", "iterations")
    equal = all(torch.equal(getattr(one, part), getattr(other, part)) for part in parts)
    return equal and one.status.tolist() == other.status.tolist()


@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("name", [*MAPPED, *OTHERS])
def test_decisions_are_the_models_to_the_last_bit(name: str, set_name: str) -> None:
    model, feasible_set = with_units(shaken((MAPPED | OTHERS)[name](), 0.1)), SETS[set_name](4)
    prepared, context = prepare(model, feasible_set), rows_for(model)
    batches = [None] if context is None else [context, context[:5], context[0], context[:0], context[:4, None]]
    for rows in batches:
        expected = minimize(model, feasible_set, rows)
        found = prepared.minimize(rows)
        assert same(found, expected)
        if found.value.numel() > 0:
            assert bool((certify(model, feasible_set, found.x, rows).relative_gap <= CERTIFIED).all())


@pytest.mark.parametrize("name", ["soc", "exact", "dcp"])
def test_limits_and_starts_are_those_of_minimize(name: str) -> None:
    model = shaken((MAPPED | OTHERS)[name](), 0.1)
    context, feasible_set = rows_for(model), SETS["budget"](4)
    prepared = prepare(model, feasible_set)
    first = minimize(model, feasible_set, context)
    for options in ({"tol": 1e-9}, {"max_iter": 2}, {"time_limit": 60.0}, {"x0": first}, {"x0": first.x, "tol": 1e-8}):
        assert same(prepared.minimize(context, **options), minimize(model, feasible_set, context, **options))
    assert prepared.minimize(context, time_limit=1e-9).value.shape == first.value.shape


@pytest.mark.parametrize("feasible_set", [Box(4, [0.0, 1.0, 0.0, 0.0], 1.0), Budget(4, 4.0), Simplex(4, 1e-6)], ids=str)
def test_coordinates_that_are_fixed(feasible_set) -> None:
    model = shaken(MODELS["soc"](4))
    assert same(prepare(model, feasible_set).minimize(CONTEXTS), minimize(model, feasible_set, CONTEXTS))


def test_precisions_are_those_of_minimize() -> None:
    model = shaken(MODELS["soc"](4))
    single = copy.deepcopy(model).float()
    for which, context in ((model, CONTEXTS.float()), (single, CONTEXTS), (single, CONTEXTS.float())):
        found = prepare(which, SETS["budget"](4)).minimize(context, tol=1e-4)
        expected = minimize(which, SETS["budget"](4), context, tol=1e-4)
        assert same(found, expected)
        assert found.x.dtype == (SINGLE if which is single and context.dtype == SINGLE else DOUBLE)


@pytest.mark.parametrize("standardised", [False, True])
@pytest.mark.parametrize("name", MAPPED)
def test_a_packed_model_has_the_numbers_of_its_packed_form(name: str, standardised: bool) -> None:
    model = shaken(MAPPED[name]())
    context = CONTEXTS[:3, : model.context_dim] if model.context_dim else torch.zeros(1, 0, dtype=DOUBLE)
    if standardised:
        with_units(model)
    with torch.no_grad():
        mine = PackedModel.of(model).at(context)
        packed = pack(model.form_at(context if model.context_dim else context[0]))
    assert (mine.layout.numbers == packed.layout.numbers).all()
    for found, expected in ((mine.shared, packed.shared), (mine.data, packed.data)):
        close(torch.from_numpy(found), torch.from_numpy(expected), VALUE)


# -- what becomes of the model ---------------------------------------------------------------------------


def make() -> SOCICNN:
    model = shaken(SOCICNN(4, 3, hidden=(5, 4), **BLOCKS, seed=3))
    assert isinstance(model, SOCICNN)
    return model


def step(model: SOCICNN) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.rand(40, 4, dtype=DOUBLE), CONTEXTS).sum().backward()
    optimizer.step()


def edit_data(model: SOCICNN) -> None:
    for weight in model.parameters():
        weight.data += 0.3


def edit_by_numpy(model: SOCICNN) -> None:
    model.U_raw[0].detach().numpy()[0, 0] += 1.0


def edit_units(model: SOCICNN) -> None:
    with_units(model)


def give_new_storage(model: SOCICNN) -> None:
    model.W[0].data = model.W[0].data + 1.0


def replace_a_weight(model: SOCICNN) -> None:
    model.U_raw[0] = nn.Parameter(model.U_raw[0].detach() + 1.0)


def replace_a_module(model: SOCICNN) -> None:
    other = make()
    edit_data(other)
    model.affine, model.c = other.affine, other.c


def load_others(model: SOCICNN) -> None:
    other = make()
    edit_data(other)
    model.load_state_dict(other.state_dict())


def assign_others(model: SOCICNN) -> None:
    other = make()
    edit_data(other)
    model.load_state_dict(other.state_dict(), assign=True)


def switch_a_block_off(model: SOCICNN) -> None:
    model._off = frozenset({"norm1"})


CHANGES: list[Callable[[SOCICNN], None]] = [
    step,
    edit_data,
    edit_by_numpy,
    edit_units,
    give_new_storage,
    replace_a_weight,
    replace_a_module,
    load_others,
    assign_others,
    switch_a_block_off,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_minimize_misses_no_change_and_a_prepared_model_takes_none(change: Callable[[SOCICNN], None]) -> None:
    model, feasible_set = make(), SETS["budget"](4)
    prepared, before = prepare(model, feasible_set), minimize(model, feasible_set, CONTEXTS)
    change(model)
    after = minimize(model, feasible_set, CONTEXTS)
    own = SmoothingNewton().solve(Problem(model.conic_form(CONTEXTS).detach(), feasible_set), Limits(tol=1e-9))
    torch.testing.assert_close(after.value, own.value, rtol=2 * CERTIFIED, atol=2 * CERTIFIED)
    assert bool((after.lower_bound <= own.value + VALUE[DOUBLE] * own.value.abs()).all())
    assert bool((after.value - before.value).abs().max() > 1e-4)
    assert same(prepared.minimize(CONTEXTS), before)
    assert same(prepare(model, feasible_set).minimize(CONTEXTS), after)


def test_copies_decide_alike() -> None:
    prepared = prepare(make(), SETS["budget"](4))
    expected = prepared.minimize(CONTEXTS)
    for other in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        assert same(other.minimize(CONTEXTS), expected)


def test_it_outlives_an_inference_mode_and_not_the_other_way_round() -> None:
    model = make()
    with torch.inference_mode():
        prepared = prepare(model, SETS["budget"](4))
    assert same(prepared.minimize(CONTEXTS), minimize(model, SETS["budget"](4), CONTEXTS))
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_threads_share_one_and_each_has_its_own() -> None:
    prepared = []
    for shift in range(4):
        model = make()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * shift)
        prepared.append(prepare(model, SETS["budget"](4)))
    expected = [one.minimize(CONTEXTS) for one in prepared]
    found: dict[int, bool] = {}

    def run(k: int) -> None:
        found[k] = all(same(prepared[j % 4].minimize(CONTEXTS), expected[j % 4]) for j in range(k, k + 12))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


# -- what is refused -------------------------------------------------------------------------------------


class Parabola(ConvexSurrogate):
    """||x||^2 by its value alone."""

    def _value(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return x.square().sum(dim=-1)


def test_what_does_not_fit_is_refused() -> None:
    model = make()
    with pytest.raises(ValueError, match=r"feasible_set: expected dimension 4.*got 5"):
        prepare(model, Simplex(5))
    with pytest.raises(NotImplementedError, match="Parabola has no conic form"):
        prepare(Parabola(4), Simplex(4))
    prepared = prepare(model, Simplex(4))
    for options, message in (
        ({"tol": 0.0}, "tol: expected a positive"),
        ({"max_iter": 0}, "max_iter: expected an integer"),
        ({"time_limit": -1.0}, "time_limit: expected a positive"),
        ({"x0": torch.zeros(40, 3)}, "x0: expected last dimension 4"),
    ):
        with pytest.raises(ValueError, match=message):
            prepared.minimize(CONTEXTS, **options)
    with pytest.raises(ValueError, match="context: expected last dimension 3"):
        prepared.minimize(torch.zeros(4))
    with pytest.raises(ValueError, match="context: expected 3 numbers"):
        prepared.minimize()


@pytest.mark.parametrize(("name", "number"), [("f", 1e21), ("f", -1e25), ("h", -1e25)])
def test_right_hand_sides_beyond_all_size_are_refused_as_by_the_set(name: str, number: float) -> None:
    """They went straight to a linear programme: "Model error"."""
    plant = Polyhedron(4, 0.0, 1.0, E=[np.ones(4)], f=[2.0], G=[[1.0, -1.0, 0.0, 0.0]], h=[0.3])
    sides = {name: torch.full((len(CONTEXTS), 1), number, dtype=DOUBLE)}
    with pytest.raises(ValueError, match=rf"{name}: expected numbers below 1e\+20"):
        prepare(make(), plant).minimize(CONTEXTS, **sides)


@pytest.mark.parametrize("weight", ["W.0", "U_raw.0", "c.floor", "affine.slope.constant", "kappa"])
def test_weights_that_are_not_finite_are_named(weight: str) -> None:
    model = make()
    with torch.no_grad():
        model.get_parameter(weight).view(-1)[0] = float("nan")
    name = {"affine.slope.constant": "^v:", "kappa": "^norms.kappa:"}.get(weight, "^network")
    for decide in (lambda: minimize(model, SETS["budget"](4), CONTEXTS), lambda: prepare(model, SETS["budget"](4))):
        with pytest.raises(ValueError, match=name):
            decide()


def test_more_variables_than_newton_takes_over_one_set_have_right_hand_sides_too() -> None:
    model = shaken(SOCICNN(600, 3, hidden=(), quadratics=(4,), seed=0))
    upper = torch.full((2, 600), 0.5, dtype=DOUBLE)
    decision = prepare(model, Box(600)).minimize(CONTEXTS[:2], upper=upper)
    again = minimize(model, Box(600).at(upper=upper), CONTEXTS[:2])
    assert (decision.status == "optimal").all()
    assert float((decision.value - again.value).abs().max()) <= 2e-6 * float(again.value.abs().max().clamp(min=1))


def test_options_of_minimize_alone_are_refused_by_name() -> None:
    model = SOCICNN(3)
    with pytest.raises(TypeError, match=r"^subject_to: expected right-hand sides \(total, lower, upper, f, h\)"):
        prepare(model, Box(3)).minimize(subject_to=[model])
