"""What is kept of a model's weights is never used for others: whatever changes them, and however."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from tolerances import CERTIFIED, DOUBLE, VALUE
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from zoo import MODELS, SETS, shaken

from soctk import SOCICNN, ConvexSurrogate, load, minimize, save
from soctk.decide.compiled.form import pack
from soctk.decide.newton import SmoothingNewton
from soctk.decide.problem import Limits, Problem
from soctk.decide.ready import _ready
from soctk.memo import Memo
from soctk.models.dense import MODELS as READY_MODELS

CONTEXT = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
POINTS = torch.rand(3, 4, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
DENSE = [name for name in MODELS if isinstance(MODELS[name](4), READY_MODELS)]


def make() -> SOCICNN:
    model = shaken(SOCICNN(4, 3, hidden=(5, 4), quadratics=(3,), norms=(2, 3, 2), hyperbolics=2, diagonal=True, seed=3))
    assert isinstance(model, SOCICNN)
    return model


def check_fresh(model: ConvexSurrogate) -> None:
    """Assert that values and decisions are those of the weights as they are: of a form made here and now."""
    form = model.conic_form(CONTEXT.to(model.device)).detach()
    with torch.no_grad():
        torch.testing.assert_close(model(POINTS, CONTEXT), form.value(POINTS), rtol=VALUE[DOUBLE], atol=VALUE[DOUBLE])
    decision = minimize(model, SETS["budget"](4), CONTEXT)
    own = SmoothingNewton().solve(Problem(form, SETS["budget"](4)), Limits(1e-9))
    torch.testing.assert_close(decision.value, own.value, rtol=2 * CERTIFIED, atol=2 * CERTIFIED)
    assert bool((decision.lower_bound <= own.value + VALUE[DOUBLE] * own.value.abs()).all())


def step(model: SOCICNN) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(POINTS, CONTEXT).sum().backward()
    optimizer.step()


def edit_data(model: SOCICNN) -> None:
    for weight in model.parameters():
        weight.data += 0.3


def edit_by_numpy(model: SOCICNN) -> None:
    model.U_raw[0].detach().numpy()[0, 0] += 1.0


def edit_units(model: SOCICNN) -> None:
    model.set_standardization(x=(0.3, 2.0), value=(1.0, 3.0), context=(CONTEXT[0], CONTEXT[1].abs()))


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


def add_a_hook(model: SOCICNN) -> None:
    model.d[0].register_forward_hook(lambda module, arguments, answer: torch.add(answer, 1.0))


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
    add_a_hook,
    switch_a_block_off,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_no_change_is_missed(change: Callable[[SOCICNN], None]) -> None:
    model = make()
    check_fresh(model)
    before = minimize(model, SETS["budget"](4), CONTEXT).value
    change(model)
    check_fresh(model)
    assert bool((minimize(model, SETS["budget"](4), CONTEXT).value - before).abs().max() > 1e-4)


def test_copies_and_files_have_weights_of_their_own(tmp_path) -> None:
    model = make()
    check_fresh(model)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    copies.append(torch.load(stream, weights_only=False))
    save(model, tmp_path / "model")
    copies.append(load(tmp_path / "model"))
    for other in copies:
        check_fresh(other)
        edit_data(other)
        check_fresh(other)
    check_fresh(model)


def test_another_precision_and_back() -> None:
    model = make()
    value = minimize(model, SETS["budget"](4), CONTEXT).value
    rounded = minimize(model.to(torch.float32), SETS["budget"](4), CONTEXT.float(), tol=1e-4)
    assert rounded.value.dtype == torch.float32
    torch.testing.assert_close(rounded.value.double(), value, rtol=1e-3, atol=1e-3)
    check_fresh(model.to(DOUBLE))


def test_values_stay_differentiable() -> None:
    model = make()
    check_fresh(model)
    model(POINTS, CONTEXT).sum().backward()
    assert all(weight.grad is not None for weight in (*model.U_raw, *model.W))
    with torch.inference_mode():
        model(POINTS, CONTEXT)
    points = POINTS.clone().requires_grad_()
    model(points, CONTEXT).sum().backward()  # what an inference mode has left behind does no harm
    assert points.grad is not None


def test_values_under_transformations_of_the_weights() -> None:
    model = make()
    check_fresh(model)
    weights = {name: weight.detach() + 0.1 for name, weight in model.named_parameters()}
    pairs = {name: torch.stack([weight, weight + 0.1]) for name, weight in weights.items()}

    def value(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, given, (POINTS[0], CONTEXT[0]))

    with torch.no_grad():
        both = torch.func.vmap(value)(pairs)
        for k in range(2):
            alone = value({name: weight[k] for name, weight in pairs.items()})
            torch.testing.assert_close(both[k], alone, rtol=VALUE[DOUBLE], atol=VALUE[DOUBLE])
    check_fresh(model)


def test_values_inside_transformations_of_the_inputs() -> None:
    x, context = POINTS[0], CONTEXT[0]
    exact = torch.autograd.functional.jacobian(lambda point: make()(point, context), x)

    def penalty(model: SOCICNN, point: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = model(point, context)
        return (model(point, context) - target + 1.0).square()

    for warm in (False, True):
        model = make()
        if warm:
            check_fresh(model)
        slope = torch.func.grad(lambda point, model=model: penalty(model, point))(x)
        torch.testing.assert_close(slope, 2 * exact, rtol=VALUE[DOUBLE], atol=VALUE[DOUBLE])
        with torch.no_grad():
            _, moved = torch.func.jvp(lambda point, model=model: model(point, context), (x,), (torch.ones_like(x),))
        torch.testing.assert_close(moved, exact.sum(), rtol=VALUE[DOUBLE], atol=VALUE[DOUBLE])
        check_fresh(model)


def test_stand_ins_for_weights_are_no_weights() -> None:
    model = make()
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def value(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, given, (POINTS, CONTEXT))

    with torch.no_grad():
        for _ in range(2):  # before and after anything is kept
            functional = torch.func.functionalize(value)(weights)
            with torch.autograd.forward_ad.dual_level():
                pairs = {k: torch.autograd.forward_ad.make_dual(w, torch.ones_like(w)) for k, w in weights.items()}
                assert torch.autograd.forward_ad.unpack_dual(value(pairs)).tangent is not None
            torch.testing.assert_close(functional, model(POINTS, CONTEXT), rtol=VALUE[DOUBLE], atol=VALUE[DOUBLE])
    check_fresh(model)


def test_tensors_without_numbers_leave_nothing_behind() -> None:
    model = make()
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        assert model.kept(Memo[int](), lambda twin: 1) is None
    check_fresh(model)


def test_a_precision_unknown_to_numpy() -> None:
    model = make()
    with torch.no_grad():
        exact = model(POINTS, CONTEXT)
        rounded = model.to(torch.bfloat16)(POINTS.float(), CONTEXT.float())
    torch.testing.assert_close(rounded.double(), exact, rtol=0.1, atol=0.1)


def test_other_memory_for_a_weight_while_it_is_compared() -> None:
    owner, memo = nn.Linear(1000, 2000), Memo[float]()
    other, stop = owner.weight.detach().clone(), threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            owner.weight.data = other.clone()

    thread = threading.Thread(target=exchange)
    thread.start()
    with torch.no_grad():
        answers = {memo.of(owner, [owner.weight], lambda weights: float(weights[0][0, 0])) for _ in range(300)}
    stop.set()
    thread.join()
    assert answers == {float(other[0, 0])}


def test_nothing_outlives_its_model() -> None:
    model = make()
    check_fresh(model)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_the_answer_is_of_the_weights_before_a_change_meanwhile() -> None:
    owner, memo = nn.Linear(2, 1), Memo[float]()

    def compute(weights) -> float:
        with torch.no_grad():
            owner.weight.fill_(2.0)
        return float(weights[0].sum())

    with torch.no_grad():
        owner.weight.fill_(1.0)
        assert memo.of(owner, [owner.weight], compute) == 2.0
        assert memo.of(owner, [owner.weight], compute) == 4.0
        assert memo.of(owner, [owner.weight], lambda weights: pytest.fail("this one is known")) == 4.0
        assert memo.of(owner, [owner.weight], lambda weights: 0.0, key=lambda: "another") == 0.0


def test_signs_of_zeros_and_nan_are_told_apart() -> None:
    owner, memo = nn.Linear(1, 1), Memo[str]()
    with torch.no_grad():
        owner.weight.fill_(0.0)
        assert memo.of(owner, [owner.weight], lambda weights: "zero") == "zero"
        owner.weight.fill_(-0.0)
        assert memo.of(owner, [owner.weight], lambda weights: "minus zero") == "minus zero"
        owner.weight.fill_(float("nan"))
        assert memo.of(owner, [owner.weight], lambda weights: "nan") == "nan"
        assert memo.of(owner, [owner.weight], lambda weights: "again") == "nan"


def test_threads_with_weights_of_their_own() -> None:
    models = [make() for _ in range(4)]
    for shift, model in enumerate(models):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * shift)
    expected = [minimize(copy.deepcopy(model), SETS["budget"](4), CONTEXT).value for model in models]
    found: dict[int, bool] = {}

    def run(k: int) -> None:
        same = (
            torch.equal(minimize(models[j % 4], SETS["budget"](4), CONTEXT).value, expected[j % 4])
            for j in range(k, k + 12)
        )
        found[k] = all(same)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


@pytest.mark.parametrize("standardised", [False, True])
@pytest.mark.parametrize("name", [*DENSE, "additive", "no_context", "no_linear"])
def test_a_ready_model_has_the_numbers_of_its_packed_form(name: str, standardised: bool) -> None:
    blocks = {"norms": (2, 3, 2), "quadratics": (2,), "diagonal": True, "hyperbolics": 2}
    others = {
        "additive": lambda: SOCICNN(4, 3, conditioning="additive", **blocks),
        "no_context": lambda: SOCICNN(4, 0, affine_hidden=0, **blocks),
        "no_linear": lambda: SOCICNN(4, 3, linear=False, ridges=0, **blocks),
    }
    model = shaken(others[name]() if name in others else MODELS[name](4))
    context = CONTEXT[:, : model.context_dim] if model.context_dim else torch.zeros(1, 0, dtype=DOUBLE)
    if standardised:
        units = (context[0], context[1].abs()) if model.context_dim else None
        model.set_standardization(x=(0.4, 1.7), value=(2.0, 3.0), context=units)
    with torch.no_grad():
        ready = _ready(model)
        packed = pack(model.form_at(context if model.context_dim else context[0]))
    assert ready is not None
    mine = ready.at(context.numpy())
    assert (mine.layout.numbers == packed.layout.numbers).all()
    assert (mine.shared == packed.shared).all()
    assert abs(mine.data - packed.data).max() <= VALUE[DOUBLE] * abs(packed.data).max()


def test_weights_that_are_not_finite_are_named() -> None:
    model = make()
    check_fresh(model)
    with torch.no_grad():
        model.W[0][0, 0] = float("nan")
    with pytest.raises(ValueError, match="network"):
        minimize(model, SETS["budget"](4), CONTEXT)
