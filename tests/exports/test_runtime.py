"""Files that decide without PyTorch: the decisions of `soctk.prepare`, and clear errors for everything else."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from tolerances import CERTIFIED, DOUBLE, VALUE
from zoo import MODELS, SETS, shaken

import soctk
from soctk import runtime
from soctk.runtime import file as runtime_file

n, COUNT = 5, 8
ROWS = np.random.default_rng(4).normal(size=(3, n))
EVERY = SETS | {
    "fixed": lambda n: soctk.Box(n, (-1.0, 0.3, *(0.0,) * (n - 2)), (1.0, 0.3, *(2.0,) * (n - 2))),
    "rows": lambda n: soctk.Polyhedron(n, -1.0, 2.0, G=ROWS, h=[0.5, 1.0, 0.2]),
    "equalities": lambda n: soctk.Polyhedron(
        n, 0.0, 1.0, E=np.ones((1, n)), f=[1.5], G=ROWS, h=ROWS @ np.full(n, 0.3) + 0.2
    ),
    "endless": lambda n: soctk.Polyhedron(n, 0.0, G=np.ones((1, n)), h=[2.0]),
}
SUPPORTED = [name for name in MODELS if name != "ickan"]
CONTEXTS = torch.randn(COUNT, 3, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
ALONE = """
import sys
for name in ("torch", "numba", "scipy", "cvxpy", "safetensors", "pandas"):
    sys.modules[name] = None
import json
import numpy as np
from soctk import runtime
from pathlib import Path
folder = Path(sys.argv[1])
contexts, found = np.load(folder / "contexts.npy"), {}
for path in sorted(folder.glob("*.soctk")):
    decide = runtime.load(path)
    found[path.stem] = np.stack([np.append(d.x, [d.value, d.lower_bound]) for d in map(decide, contexts)])
np.savez(folder / "found.npz", **found)
"""


def model_of(name: str) -> soctk.ConvexSurrogate:
    return shaken(MODELS[name](n), 0.1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, np.ndarray]:
    """x, value and bound of every model over every set, decided by a process that can load NumPy and llvmlite alone."""
    folder = tmp_path_factory.mktemp("alone")
    np.save(folder / "contexts.npy", CONTEXTS.numpy())
    for name in SUPPORTED:
        for kind, make in EVERY.items():
            soctk.to_runtime(model_of(name), make(n), folder / f"{name}-{kind}.soctk")
    done = subprocess.run([sys.executable, "-c", ALONE, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(np.load(folder / "found.npz"))


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("name", SUPPORTED)
def test_a_process_without_pytorch_decides_the_same(alone, name: str, kind: str) -> None:
    prepared = soctk.prepare(model_of(name), EVERY[kind](n))
    found = alone[f"{name}-{kind}"]
    for row, context in zip(found, CONTEXTS, strict=True):
        decision = prepared.minimize(context)
        if decision.solver != "newton":  # what Clarabel ends, the file leaves as it is, with an honest gap
            assert row[n + 1] <= float(decision.value) + VALUE[DOUBLE] <= row[n] + 2 * VALUE[DOUBLE]
            continue
        wanted = np.append(decision.x.numpy(), [float(decision.value), float(decision.lower_bound)])
        assert np.abs(row - wanted).max() <= VALUE[DOUBLE] * max(1.0, np.abs(wanted).max())


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("exported") / "soc.soctk"
    return path, soctk.to_runtime(model_of("soc"), soctk.Simplex(n), path, notes={"unit": "EUR"})


@pytest.fixture(scope="module")
def decide(exported) -> runtime.Decider:
    return runtime.load(exported[0], sha256=exported[1])


def test_a_decision_says_what_it_is(decide) -> None:
    found = decide(CONTEXTS[0])
    assert (decide.dim, decide.context_dim, decide.notes) == (n, 3, {"unit": "EUR"})
    assert found.optimal
    assert 0 <= found.gap <= CERTIFIED * max(1.0, abs(found.value)) * (1 + VALUE[DOUBLE])
    assert found.relative_gap == found.gap / found.scale
    assert found.violation <= VALUE[DOUBLE]
    assert found.outside is None
    with torch.no_grad():
        value = float(model_of("soc")(torch.from_numpy(found.x), CONTEXTS[0]))
    assert abs(value - found.value) <= VALUE[DOUBLE] * max(1.0, abs(value))


def test_the_file_knows_where_the_data_were(tmp_path) -> None:
    model = model_of("soc")
    model.support = soctk.support.Support.of((CONTEXTS, soctk.Simplex(n).sample((COUNT, 4))))
    soctk.to_runtime(model, soctk.Simplex(n), tmp_path / "a.soctk")
    decide, prepared = runtime.load(tmp_path / "a.soctk"), soctk.prepare(model, soctk.Simplex(n))
    for context in (CONTEXTS[0], CONTEXTS[1], 100 * CONTEXTS[0]):
        assert decide(context).outside == bool(prepared.minimize(context).outside)
    assert decide(100 * CONTEXTS[0]).outside


def test_without_a_context(tmp_path) -> None:
    model = soctk.SOCICNN(n, hidden=(4,), quadratics=(3,), seed=1)
    soctk.to_runtime(model, soctk.Box(n), tmp_path / "a.soctk")
    decide = runtime.load(tmp_path / "a.soctk")
    wanted = soctk.prepare(model, soctk.Box(n)).minimize()
    for _ in range(2):
        assert np.abs(decide().x - wanted.x.numpy()).max() <= VALUE[DOUBLE]


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> tuple[runtime.Decider, soctk.decide.prepare.Prepared]:
    """Over rows whose right-hand sides come with the context: an exported file and the prepared model."""
    path = tmp_path_factory.mktemp("plan") / "a.soctk"
    soctk.to_runtime(model_of("soc"), EVERY["equalities"](n), path)
    return runtime.load(path), soctk.prepare(model_of("soc"), EVERY["equalities"](n))


def test_right_hand_sides_may_come_with_the_context(plan) -> None:
    decide, prepared = plan
    random = np.random.default_rng(7)
    for context in CONTEXTS:
        f = random.uniform(0.5, 2.0, size=1)
        h = ROWS.sum(axis=1) * f / n + random.uniform(0.05, 0.5, size=3)
        sides = {"f": f, "h": h} if random.random() < 0.7 else {}
        found = decide(context, **sides)
        wanted = prepared.minimize(
            context[None], **{name: torch.from_numpy(side)[None] for name, side in sides.items()}
        )
        assert found.optimal
        assert np.abs(found.x - wanted.x[0].numpy()).max() <= VALUE[DOUBLE]
        assert abs(found.lower_bound - float(wanted.lower_bound)) <= VALUE[DOUBLE] * max(1.0, abs(found.value))
        assert found.violation <= VALUE[DOUBLE]


EMPTY = {
    "beyond the bounds": {"f": [n + 0.1]},
    "beyond the bounds below": {"f": [-0.1]},
    "a row out of reach": {"h": [-10.0, 1.0, 1.0]},
    "rows against each other": {"f": [4.9], "h": [0.0, 0.0, 0.0]},
}


@pytest.mark.parametrize("sides", EMPTY.values(), ids=EMPTY)
def test_rows_without_a_point_are_said_to_be(plan, sides) -> None:
    decide, prepared = plan
    found = decide(CONTEXTS[0], **sides)
    wanted = prepared.minimize(
        CONTEXTS[:1], **{name: torch.tensor([side], dtype=DOUBLE) for name, side in sides.items()}
    )
    assert wanted.status[0] == soctk.Status.INFEASIBLE
    assert found.status == soctk.Status.INFEASIBLE
    assert np.isnan(found.x).all()
    assert np.isnan(found.value)
    assert decide(CONTEXTS[0]).optimal


def test_rows_that_leave_next_to_nothing_have_a_decision(plan) -> None:
    """One point but for rounding: there is no interior for a barrier."""
    decide, _ = plan
    found = decide(CONTEXTS[0], f=[float(n)], h=ROWS.sum(axis=1) + 1.0)
    assert np.abs(found.x - 1.0).max() <= 1e-8
    assert found.violation <= 1e-8


def test_bad_sides_are_refused(plan, decide, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"h: expected shape \(3,\), got \(2,\)"):
        plan[0](CONTEXTS[0], h=[1.0, 2.0])
    with pytest.raises(ValueError, match="f: expected finite numbers, got inf"):
        plan[0](CONTEXTS[0], f=[float("inf")])
    with pytest.raises(TypeError, match="g: expected f and h"):
        plan[0](CONTEXTS[0], g=[1.0])
    with pytest.raises(TypeError, match="Simplex"):
        decide(CONTEXTS[0], f=[1.0])
    soctk.to_runtime(model_of("soc"), EVERY["endless"](n), tmp_path / "a.soctk")
    with pytest.raises(TypeError, match="finite bounds"):
        runtime.load(tmp_path / "a.soctk")(CONTEXTS[0], h=[1.0])


def test_threads_do_not_disturb_each_other(decide) -> None:
    one_by_one = [decide(context).x for context in CONTEXTS]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            for x, found in zip(one_by_one, pool.map(decide, CONTEXTS), strict=True):
                assert (found.x == x).all()


def test_after_an_interrupt_right_hand_sides_are_as_the_next_call_has_them(tmp_path) -> None:
    """Those of the call that was interrupted were half given, and taken for given by the calls after it."""
    soctk.to_runtime(model_of("soc"), EVERY["equalities"](n), tmp_path / "a.soctk")
    decide, fresh = (runtime.load(tmp_path / "a.soctk") for _ in range(2))

    def interrupt() -> int:
        raise KeyboardInterrupt

    (work,) = decide._free
    work._sides._reduce = interrupt
    with pytest.raises(KeyboardInterrupt):
        decide(CONTEXTS[0], f=[2.0])
    found, expected = (one(CONTEXTS[0], f=[2.0]) for one in (decide, fresh))
    assert found.optimal
    assert (found.x == expected.x).all()


def test_limits_are_kept_and_gaps_stay_honest(decide) -> None:
    best = decide(CONTEXTS[0], tol=1e-9)
    few = decide(CONTEXTS[0], max_iter=1)
    assert (few.status, few.iterations) == (soctk.Status.ITERATION_LIMIT, 1)
    late = decide(CONTEXTS[0], time_limit=1e-9)
    assert (late.status, late.iterations) == (soctk.Status.TIME_LIMIT, 0)
    for found in (few, late):
        assert found.lower_bound <= best.value <= found.value
        assert not found.optimal


@pytest.mark.parametrize("level", [0.0, 3.0])
def test_where_f_hardly_varies_the_unit_is_finer(tmp_path, level: float) -> None:
    """A function times 1e-5: a gap of 1e-6 max(1, |value|) would tell nothing."""
    model = model_of("soc")
    with torch.no_grad():
        model.value_scale.mul_(1e-5)
        model.value_mean.fill_(level)
    soctk.to_runtime(model, soctk.Simplex(n), tmp_path / "a.soctk")
    decide, prepared = runtime.load(tmp_path / "a.soctk"), soctk.prepare(model, soctk.Simplex(n))
    for context in CONTEXTS:
        found, wanted = decide(context), prepared.minimize(context)
        assert found.optimal
        assert found.scale <= float(wanted.scale) < 0.1
        assert found.lower_bound <= float(wanted.value)
        assert float(wanted.lower_bound) <= found.value
    late = decide(CONTEXTS[0], time_limit=1e-9)
    assert (late.status, late.scale < 0.1) == (soctk.Status.TIME_LIMIT, True)


@pytest.mark.parametrize("off", [0.0, 1e-7])
@pytest.mark.parametrize("set_name", list(EVERY))
def test_a_minimum_where_the_search_begins_does_not_make_the_unit_finer(tmp_path, set_name: str, off: float) -> None:
    """It was "stalled", its gap of rounding measured in units of rounding."""
    feasible_set = EVERY[set_name](n)
    cost = soctk.from_quadratic(np.eye(n), off * np.arange(n) - feasible_set.center().numpy(), 0.1)
    decide = runtime.load(tmp_path / "f", sha256=soctk.to_runtime(cost, feasible_set, tmp_path / "f"))
    answer, known = decide(), soctk.minimize(cost, feasible_set)
    assert answer.optimal
    assert answer.scale == pytest.approx(max(1.0, abs(answer.value)))
    assert answer.value == pytest.approx(float(known.value), abs=CERTIFIED)


@pytest.mark.parametrize("level", [1e5, 1e7, 1e10])
def test_rows_within_wide_bounds_have_a_unit_that_is_as_fine(tmp_path, level: float) -> None:
    """What f varies by over the bounds, 1e4 times the set, is no measure of what it varies by between the rows."""
    turn = scipy.stats.ortho_group.rvs(3, random_state=1)
    aim = np.array([0.4, -0.2, 0.3])
    form = soctk.from_quadratic(2 * np.eye(3), -2 * aim, b=float(level + aim @ aim))
    cube = soctk.Polyhedron(3, -1e4, 1e4, G=np.vstack([turn, -turn]), h=np.ones(6))
    soctk.to_runtime(form, cube, tmp_path / "a.soctk")
    decide = runtime.load(tmp_path / "a.soctk")
    for found in (decide(), decide(h=0.9 * np.ones(6))):
        assert found.optimal
        assert found.gap <= 0.01  # of about 7
        assert np.square(found.x - aim).sum() <= 0.01
    beyond = decide(h=np.array([5.0, 1.0, 1.0, -3.0, 1.0, 1.0]))  # without the centre: the gap over the bounds it is
    assert beyond.optimal


BAD_CALLS = {
    "no context": ((), ValueError, "expected 3 numbers, got None"),
    "several": ((np.zeros((2, 3)),), ValueError, "one context after another"),
    "too short": ((np.zeros(2),), ValueError, r"expected shape \(3,\)"),
    "a NaN": (([0.0, float("nan"), 0.0],), ValueError, "got nan at coordinate 1"),
    "text": (("abc",), TypeError, "expected 3 numbers"),
    "masked": ((np.ma.masked_less([1.0, 2.0, 3.0], 1.5),), TypeError, "expected 3 numbers, got masked ones"),
    "complex": ((np.array([1 + 1j, 2, 3]),), TypeError, "expected 3 numbers, .*of type complex128"),
    "dates": ((np.array(["2024-03-01"] * 3, "M8[D]"),), TypeError, "expected 3 numbers, .*of type datetime64"),
    "numbers as texts": ((["1", "2", "3"],), TypeError, "expected 3 numbers, .*of type <U1"),
    "far away": (([1e308, 1e308, 1e308],), ValueError, "not finite"),
}


@pytest.mark.parametrize(("arguments", "kind", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_contexts_are_refused(decide, arguments, kind, message) -> None:
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(kind, match=message):
        decide(*arguments)
    assert decide(CONTEXTS[0]).optimal


@pytest.mark.parametrize("name", ["tol", "max_iter", "time_limit"])
def test_bad_limits_are_refused(decide, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected a positive number"):
        decide(CONTEXTS[0], **{name: 0})
    with pytest.raises(ValueError, match=f"{name}: expected a positive number"):
        decide(CONTEXTS[0], **{name: "1"})


@pytest.mark.parametrize("limit", [1.5, 10**400, True])
def test_steps_are_counted(decide, limit: float) -> None:
    with pytest.raises(ValueError, match="max_iter: expected a whole number"):
        decide(CONTEXTS[0], max_iter=limit)


def test_a_context_may_be_part_of_a_graph(decide) -> None:
    assert (decide(CONTEXTS[0].clone().requires_grad_()).x == decide(CONTEXTS[0]).x).all()


def altered(exported: tuple[Path, str], target: Path, **header) -> Path:
    contents = runtime_file.read(exported[0])
    runtime_file.write(target, contents._replace(header={**contents.header, **header}))
    return target


def test_files_that_cannot_be_used_are_refused(exported, tmp_path) -> None:
    path, digest = exported
    content, bad = path.read_bytes(), tmp_path / "bad.soctk"
    middle = len(content) // 2
    flipped = bytes([content[middle] ^ 0xFF])
    with pytest.raises(FileNotFoundError, match="no file of decisions"):
        runtime.load(tmp_path / "nowhere.soctk")
    with pytest.raises(runtime.RuntimeFileError, match="expected sha256"):
        runtime.load(path, sha256="0" * 64)
    for damaged in (
        b"",
        b"text",
        content[:-100],
        content[:middle] + flipped + content[middle + 1 :],
    ):
        assert damaged != content
        bad.write_bytes(damaged)
        with pytest.raises(runtime.RuntimeFileError, match=r"damaged|something else"):
            runtime.load(bad)
    with pytest.raises(runtime.RuntimeFileError, match="expected format"):
        runtime.load(altered(exported, bad, format="soctk-decisions-0"))
    other = {**runtime_file.read(path).header["code"], "triple": "pdp11-unknown-unix"}
    with pytest.raises(runtime.RuntimeFileError, match="code for pdp11"):
        runtime.load(altered(exported, bad, code=other))
    assert runtime.load(path, sha256=digest.upper())(CONTEXTS[0]).optimal


def test_code_is_made_again_for_another_processor(exported, decide, tmp_path) -> None:
    """A processor that cannot do what the object file needs: the bitcode is compiled."""
    code = runtime_file.read(exported[0]).header["code"]
    path = altered(exported, tmp_path / "a.soctk", code={**code, "features": [*code["features"], "warp-drive"]})
    again = runtime.load(path)
    for context in CONTEXTS[:3]:
        assert np.abs(again(context).x - decide(context).x).max() <= VALUE[DOUBLE]


CONES = [(np.eye(n), 0.0, 0.0, 2.0)]
REFUSED = {
    "conic set": (
        lambda: (model_of("soc"), soctk.ConicSet(soctk.Box(n), [(np.eye(n), 0.0, 0.0, 2.0)])),
        "Simplex, Box",
    ),
    "one point": (lambda: (model_of("soc"), soctk.Box(n, 0.5, 0.5)), "more than one point"),
    "single precision": (lambda: (model_of("soc").float(), soctk.Box(n)), r"model.double\(\)"),
    "no context map": (lambda: (MODELS["ickan"](n), soctk.Box(n)), "context map"),
    "too large": (lambda: (soctk.QuadICNN(501, 1), soctk.Box(501)), "500 variables"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_exported_is_refused_with_a_remedy(make, message, tmp_path) -> None:
    with pytest.raises(NotImplementedError, match=message):
        soctk.to_runtime(*make(), tmp_path / "a.soctk")
    assert not list(tmp_path.iterdir())


def test_the_set_must_have_the_models_dimension(tmp_path) -> None:
    with pytest.raises(ValueError, match="expected dimension"):
        soctk.to_runtime(model_of("soc"), soctk.Box(n + 1), tmp_path / "a.soctk")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda decide: pickle.loads(pickle.dumps(decide))])
def test_copies_decide_the_same(decide, copied) -> None:
    again = copied(decide)
    for context in CONTEXTS[:3].numpy():
        assert again(context).x.tolist() == decide(context).x.tolist()


def test_notes_are_what_json_can_hold(tmp_path) -> None:
    model = model_of("soc")
    soctk.to_runtime(model, soctk.Box(n), tmp_path / "a.soctk", notes={"rows": np.int64(2)})
    assert soctk.runtime.load(tmp_path / "a.soctk").notes == {"rows": 2}
    with pytest.raises(TypeError, match=r"^notes: expected a dictionary, got list"):
        soctk.to_runtime(model, soctk.Box(n), tmp_path / "b.soctk", notes=[1])
    with pytest.raises(TypeError, match=r"^notes: expected what JSON can hold, got set"):
        soctk.to_runtime(model, soctk.Box(n), tmp_path / "b.soctk", notes={"rows": {1}})
