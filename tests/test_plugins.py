"""Other packages' surrogates and terms: found by name, not believed, and never in the way of anything else."""

from __future__ import annotations

import importlib
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import torch
from packages import installed

import soctk
from soctk.plugins import PluginError
from soctk.terms import registered
from soctk.terms.registry import term_class

SURROGATES, TERMS = "soctk.surrogates", "soctk.terms"
FLAT = """
import torch
import soctk

class Flat(soctk.ConvexSurrogate):
    ADDED = 0.0

    def __init__(self, dim, context_dim=0):
        super().__init__(dim, context_dim)
        self.slope = torch.nn.Parameter(torch.ones(dim, dtype=torch.float64))

    def _conic_form(self, context):
        level = torch.full((1, 1), self.ADDED, dtype=self.slope.dtype)
        return soctk.ConicForm(level, self.slope.reshape(1, 1, -1), (), (len(context),))

    def config(self):
        return {"dim": self.dim, "context_dim": self.context_dim}

def make(dim, context_dim, max_parameters, seed):
    return Flat(dim, context_dim)

def nothing(dim, context_dim, max_parameters, seed):
    return None

def layer(dim, context_dim, max_parameters, seed):
    return torch.nn.Linear(dim, 1)

def other(dim, context_dim, max_parameters, seed):
    return Flat(dim + 2, context_dim)

def fails(dim, context_dim, max_parameters, seed):
    return 1 / 0

def short(dim):
    return Flat(dim)

def refuses(dim, context_dim, max_parameters, seed):
    raise ValueError("dim: expected an even number")

number = 3
"""
WRONG = {
    "nothing": "made no soctk.ConvexSurrogate: NoneType",
    "layer": "made no soctk.ConvexSurrogate: Linear",
    "other": "made a surrogate of 5 variables and 0 context numbers, asked for 3 and 0",
    "fails": r"ended in an error \(ZeroDivisionError: division by zero\)",
    "short": r"ended in an error \(TypeError: .*takes 1 positional argument",
    "number": r"ended in an error \(TypeError: 'int' object is not callable",
    "absent": r"cannot be imported \(AttributeError: .*absent",
}


def surrogates(**names: str) -> dict[str, dict[str, str]]:
    return {SURROGATES: {name: f"flat_surrogates:{function}" for name, function in names.items()}}


@pytest.mark.parametrize("function", list(WRONG))
def test_what_makes_no_surrogate_is_named_with_its_package(tmp_path: Path, function: str) -> None:
    with installed(tmp_path, "flat", {"flat_surrogates.py": FLAT}, surrogates(flat="make", wrong=function)):
        assert soctk.make_surrogate("flat", 3).dim == 3
        with pytest.raises(
            PluginError, match=f"'wrong' of the package flat.* {WRONG[function]}.*; upgrade or uninstall flat"
        ):
            soctk.make_surrogate("wrong", 3)


def test_what_a_surrogate_is_to_refuse_it_refuses_in_its_own_words(tmp_path: Path) -> None:
    with installed(tmp_path, "flat", {"flat_surrogates.py": FLAT}, surrogates(flat="make", even="refuses")):
        with pytest.raises(ValueError, match=r"^dim: expected an even number"):
            soctk.make_surrogate("even", 3)
        with pytest.raises(ValueError, match="max_parameters: flat has 3 weights, expected 2 at most"):
            soctk.make_surrogate("flat", 3, max_parameters=2)


def test_a_name_of_ours_stays_ours_and_one_that_two_packages_claim_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    files = {"flat_surrogates.py": FLAT}
    with installed(tmp_path / "one", "one", files, surrogates(soc="nothing", flat="make")):
        assert type(soctk.make_surrogate("soc", 3)) is soctk.SOCICNN
        claimed = pytest.raises(
            ValueError, match=r"claimed by one \(flat_surrogates:make\) and two \(.*uninstall all but"
        )
        with installed(tmp_path / "two", "two", files, surrogates(flat="make")), claimed:
            soctk.make_surrogate("flat", 3)


def test_a_module_that_cannot_be_imported_is_not_in_the_way_of_another(tmp_path: Path) -> None:
    files = {"pair/__init__.py": "", "pair/a.py": "import no_such_package", "pair/b.py": FLAT}
    with installed(tmp_path, "pair", files, {SURROGATES: {"pair_a": "pair.a:make", "pair_b": "pair.b:make"}}):
        soctk.save(soctk.make_surrogate("pair_b", 3), tmp_path / "model")
        assert type(soctk.load(tmp_path / "model")).__module__ == "pair.b"
        with pytest.raises(PluginError, match=r"'pair_a' of the package pair.*No module named 'no_such_package'"):
            soctk.make_surrogate("pair_a", 3)


def test_a_class_that_was_reloaded_is_saved_and_loaded(tmp_path: Path) -> None:
    with installed(tmp_path, "flat", {"flat_surrogates.py": FLAT}, surrogates(flat="make")):
        soctk.save(soctk.make_surrogate("flat", 3), tmp_path / "model")
        module = importlib.reload(sys.modules["flat_surrogates"])
        soctk.save(module.Flat(3), tmp_path / "again")
        assert type(soctk.load(tmp_path / "model")) is type(soctk.load(tmp_path / "again")) is module.Flat


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("level", [5.0, 1e6])
def test_a_file_whose_class_has_become_another_function_is_refused(tmp_path, level: float, dtype: torch.dtype) -> None:
    with installed(tmp_path, "flat", {"flat_surrogates.py": FLAT}, surrogates(flat="make")):
        model = soctk.make_surrogate("flat", 3, 2).to(dtype)
        model.set_standardization(x=(1.0, 2.0), value=(level, 3.0))
        soctk.save(model, tmp_path / "model")
        x, context = torch.arange(3.0).to(dtype), torch.zeros(2, dtype=dtype)
        assert torch.equal(soctk.load(tmp_path / "model")(x, context), model(x, context))
        sys.modules["flat_surrogates"].Flat.ADDED = 0.1 if dtype == torch.float64 else 10.0
        with pytest.raises(soctk.CheckpointError, match=r"not the function that was saved: its values are others now"):
            soctk.load(tmp_path / "model")


TERM = """
from soctk.terms import Huber, registered

registered()  # while it is imported itself

class Mine(Huber):
    pass

class Other(Huber):
    pass

number = 3
"""


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"Boom": "boom_terms:Boom"}, r"cannot be imported \(RuntimeError: no licence"),
        ({"mine": "mine_terms:Mine"}, "is not called as the class: <class 'mine_terms.Mine'>"),
        ({"number": "mine_terms:number"}, "is not called as the class: 3"),
        ({"Absent": "mine_terms:Absent"}, r"cannot be imported \(AttributeError"),
    ],
)
def test_a_term_that_cannot_be_used_is_left_out_with_a_word_once_it_is_looked_for(tmp_path, entry, message) -> None:
    """`from_cvxpy` ended in its error, whatever was imported."""
    files, x = {"mine_terms.py": TERM, "boom_terms.py": "raise RuntimeError('no licence')"}, cp.Variable(2)
    with installed(tmp_path, "terms-of-others", files, {TERMS: {**entry, "Other": "mine_terms:Other"}}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            soctk.from_cvxpy(cp.sum_squares(x - 1) + cp.sum(cp.huber(x)) + cp.norm(x), x)
        assert sys.modules.keys().isdisjoint(("mine_terms", "boom_terms"))  # nothing that is known needs them
        (name,) = entry
        with pytest.raises(PluginError, match=f"'{name}' of the package terms-of-others.*{message}"):
            term_class(name)
        warned = pytest.warns(UserWarning, match=f"a term is left out: '{name}' .*{message}")
        with warned, pytest.raises(ValueError, match=r"exp.* has no exact counterpart"):
            soctk.from_cvxpy(cp.sum(cp.exp(x)), x)
        assert "Other" in registered()
        assert term_class("Other").__module__ == "mine_terms"


def test_the_import_of_a_package_may_ask_for_what_is_registered(tmp_path: Path) -> None:
    with installed(tmp_path, "mine", {"mine_terms.py": TERM}, {TERMS: {"Mine": "mine_terms:Mine"}}):
        assert registered()["Mine"].__module__ == "mine_terms"
        assert np.isin(["Huber", "Mine"], list(registered())).all()


def test_threads_may_ask_for_a_term_while_one_of_them_imports_it(tmp_path: Path) -> None:
    files = {"slow_terms.py": "import time\nfrom soctk.terms import Huber\ntime.sleep(0.3)\nclass Slow(Huber): pass"}
    with installed(tmp_path, "slow", files, {TERMS: {"Slow": "slow_terms:Slow"}}), ThreadPoolExecutor(3) as threads:
        found = list(threads.map(term_class, ["Slow"] * 3))
        assert found == [sys.modules["slow_terms"].Slow] * 3


def test_what_is_ours_is_read_as_ours_whatever_is_imported(tmp_path: Path) -> None:
    greedy = """
from soctk.terms import Huber

class Greedy(Huber):
    atoms = ("max", "huber", "norm1", "exp")

    @classmethod
    def recognise(cls, atom):
        raise RuntimeError("not of ours")
"""
    x = cp.Variable(2)
    with installed(tmp_path, "greedy", {"greedy_terms.py": greedy}, {TERMS: {"Greedy": "greedy_terms:Greedy"}}):
        assert term_class("Greedy").atoms
        soctk.from_cvxpy(cp.max(x) + cp.norm1(x) + cp.sum(cp.huber(x)), x)
        with pytest.raises(PluginError, match=r"greedy_terms\.Greedy\.recognise ended in an error \(RuntimeError"):
            soctk.from_cvxpy(cp.sum(cp.exp(x)), x)


def test_values_in_a_file_are_compared_whatever_pytorch_takes_by_default(tmp_path: Path) -> None:
    for seed in range(20):
        slopes = 1e6 * np.random.default_rng(seed).normal(size=(1, 30))
        soctk.save(soctk.from_max_affine(slopes, np.zeros(1)), tmp_path / f"{seed}")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            models = [soctk.load(tmp_path / f"{seed}") for seed in range(20)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(models) == 20
