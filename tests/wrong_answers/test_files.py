"""Wrong answers and holes that were found by attack, each as the attack that found it."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import soctk
from soctk.io.checkpoint import _digest, read_notes
from soctk_baselines import DCP, ICKAN, PCF

# -- model files that are valid safetensors with a valid digest and say what no model is -------------------


def exact_network() -> soctk.ExactSurrogate:
    learned = soctk.SOCICNN(4, hidden=(5, 3), quadratics=(4,), norms=(2, 2), seed=1)
    return soctk.ExactSurrogate.of(learned.conic_form().detach())


FILES = {
    "dense": lambda: soctk.SOCICNN(4, 2, hidden=(5,), norms=(3,), seed=3),
    "exact": exact_network,
    "conv": lambda: soctk.ConvSOCICNN((4, 3), 0, layers=(2,), seed=1),
    "recurrent": lambda: soctk.RecurrentSOCICNN(5, 2, 0, hidden=3, seed=1),
    "dcp": lambda: DCP(3, 2, logistics=2),
    "pcf": lambda: PCF(3, 2, widths=(3,), widths_psi=(2,)),
    "ickan": lambda: ICKAN(3, 2, hidden=(2,)),
}


def forged(
    folder: Path,
    model: soctk.ConvexSurrogate,
    change: dict[str, Any] | None = None,
    tensors: dict[str, Tensor] | None = None,
    **header: str,
) -> Path:
    """Save a model and rewrite its file, with a digest that fits: configuration, tensors and header changed."""
    path = folder / "model.safetensors"
    soctk.save(model, path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        contents = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    metadata["config"] = json.dumps(json.loads(metadata["config"]) | (change or {}))
    metadata |= header
    contents |= tensors or {}
    del metadata["sha256"]
    save_file(contents, path, metadata={**metadata, "sha256": _digest(metadata, contents)})
    return path


def refused(path: Path, message: str | None = None) -> None:
    with pytest.raises(soctk.CheckpointError, match=message) as caught:
        soctk.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def changed_term(kind: str, /, **changes: Any) -> list[dict[str, Any]]:
    """Return the terms of `exact_network` with one changed: "shapes" and "options" are updated, the rest replaced."""
    terms = json.loads(json.dumps(exact_network().terms))
    (term, *_) = [term for term in terms if term["kind"] == kind]
    for name, value in changes.items():
        term[name] = term[name] | value if isinstance(value, dict) else value
    return terms


TERMS = {
    "activation": ("Network", {"options": {"activation": "relU"}}, "activation"),
    "widths": ("Network", {"options": {"widths": [3, 5]}}, "widths|U2"),
    "one width": ("Network", {"options": {"widths": [8]}}, "widths|mixing|U2"),
    "widths that are no list": ("Network", {"options": {"widths": 8}}, "widths"),
    "mixing": ("Network", {"shapes": {"U2": [1, 5]}}, "U2"),
    "map": ("Network", {"shapes": {"A": [8, 5]}}, "A"),
    "offset": ("Network", {"shapes": {"offset": [1, 7]}}, "offset"),
    "weights": ("Network", {"shapes": {"weights": [1, 1]}}, "weights"),
    "size 0": ("Norms", {"options": {"size": 0}}, "size"),
    "size 3": ("Norms", {"options": {"size": 3}}, "size|rows|weights"),
    "size 2.0": ("Norms", {"options": {"size": 2.0}}, "size"),
    "kappa": ("Norms", {"shapes": {"kappa": [1, 3]}}, "kappa"),
    "blocks": ("Quadratic", {"options": {"blocks": [3]}}, "blocks"),
    "blocks that are no list": ("Quadratic", {"options": {"blocks": 0}}, "blocks"),
    "a map of no dimensions": ("Quadratic", {"shapes": {"A": []}}, "A|tuple"),
    "unknown option": ("Norms", {"options": {"colour": 1}}, "colour"),
    "unknown tensor": ("Norms", {"shapes": {"colour": [1, 1]}}, "colour"),
    "unknown kind": ("Norms", {"kind": "Nrms"}, "kind"),
    "negative shape": ("Norms", {"shapes": {"offset": [1, -4]}}, "offset"),
    "shape of names": ("Norms", {"shapes": {"offset": ["1", "4"]}}, "offset"),
    "shape of no numbers": ("Norms", {"shapes": {"offset": []}}, "offset"),
}


@pytest.mark.parametrize("name", TERMS)
def test_terms_that_do_not_fit_together_are_refused(name: str, tmp_path: Path) -> None:
    """By the constructor, and in a file whose tensors have the shapes that it declares."""
    kind, changes, message = TERMS[name]
    terms = changed_term(kind, **changes)
    with pytest.raises(ValueError, match=rf"^terms: (?s:.)*({message})"):
        soctk.ExactSurrogate(4, terms)
    model = exact_network()
    tensors = {}
    for index, term in enumerate(terms):
        for field, shape in term["shapes"].items():
            if all(isinstance(size, int) and size >= 0 for size in shape):
                tensors[f"{term['kind'].lower()}{index}_{field}"] = torch.ones(1, *shape, dtype=torch.float64)
    refused(forged(tmp_path, model, {"terms": terms}, tensors), message)


@pytest.mark.parametrize(
    "terms", [7, "Norms", [3], [{}], [{"kind": "Norms"}], [{"kind": ["Norms"]}], {"kind": "Norms"}]
)
def test_terms_that_are_no_terms_are_refused(terms: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^terms: "):
        soctk.ExactSurrogate(4, terms)
    refused(forged(tmp_path, exact_network(), {"terms": terms}), "terms")


CONFIGURATIONS = {
    "dense": [
        {"activation": "relU"},
        {"activation": ["relu"]},
        {"hidden": [5, 0]},
        {"hidden": [5.0]},
        {"hidden": 5},
        {"hidden": "5"},
        {"hidden": None},
        {"hidden": [[5]]},
        {"hidden": [4]},
        {"dim": 0},
        {"dim": -3},
        {"dim": 4.0},
        {"dim": True},
        {"dim": "4"},
        {"dim": 5},
        {"context_dim": 3},
        {"norms": {"3": 1}},
        {"diagonal": "no"},
        {"passthrough": 0},
        {"linear": None},
        {"conditioning": "half"},
        {"ridges": -1},
        {"affine_hidden": 1.5},
        {"slope_hidden": -1},
        {"context_units": -1},
        {"context_units": "6"},
        {"diagonal_weights": 1},
        {"structures": [["norm9"]]},
        {"structures": 3},
        {"structure": 2},
        {"structure": "last"},
        {"seed": "one"},
        {"seed": 1.5},
        {"colour": 1},
    ],
    "conv": [
        {"shape": [4]},
        {"shape": 4},
        {"shape": [4, "3"]},
        {"layers": 2},
        {"layers": [{"kind": "max"}]},
        {"layers": [{"kind": ["conv"]}]},
        {"layers": [2.0]},
        {"context_channels": "a"},
        {"masks": [0]},
        {"masks": ["0"]},
        {"variant": "sock"},
        {"structure": 0.5},
        {"quadratics": "3"},
    ],
    "recurrent": [{"time_varying": "no"}, {"hidden": [3]}, {"context_channels": "a"}, {"norm_size": 0}, {"steps": 0}],
    "dcp": [
        {"logistics": 0},
        {"norms": 3},
        {"norms": [0]},
        {"slope_hidden": -1},
        {"context_units": 1.5},
        {"seed": None},
    ],
    "pcf": [{"activation": "relU"}, {"quadratic": "no"}, {"widths": 3}, {"widths_psi": [2, 0]}, {"slope_hidden": 1.5}],
    "ickan": [{"segments": 1}, {"hidden": []}, {"ridges": -1}, {"affine_hidden": "64"}, {"slope_hidden": -1}],
}
CASES = [(name, change) for name, changes in CONFIGURATIONS.items() for change in changes]


@pytest.mark.parametrize(("name", "change"), CASES, ids=[f"{name} {change}" for name, change in CASES])
def test_a_wrong_configuration_is_refused(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    """In a file; and by the constructor, unless it is another model that is merely not the file's."""
    model = FILES[name]()
    refused(forged(tmp_path, model, change))
    (key, value), *_ = change.items()
    if (key, value) not in [("hidden", [4]), ("dim", 5), ("context_dim", 3), ("steps", 6)]:
        with pytest.raises((ValueError, TypeError), match=key):
            type(model)(**model.config() | change)


LARGE = [
    ("dense", {"dim": 2**27}),
    ("dense", {"dim": 10**14}),
    ("dense", {"dim": 10**30}),
    ("dense", {"context_dim": 2**27}),
    ("dense", {"hidden": [2**16, 2**16]}),
    ("dense", {"ridges": 2**27}),
    ("dense", {"slope_hidden": 2**27}),
    ("dense", {"context_units": 2**27}),
    ("dense", {"hidden": [1] * 30_000}),
    ("exact", {"dim": 2**28}),
    ("conv", {"shape": [2**14, 2**14], "quadratics": 3}),
    ("conv", {"shape": [10**9, 10**9], "quadratics": 3}),
    ("conv", {"context_channels": 2**24}),
    ("conv", {"layers": [2**28]}),
    ("recurrent", {"steps": 2**28, "quadratics": 3}),
    ("recurrent", {"steps": 2**28, "time_varying": True}),
    ("dcp", {"logistics": 2**28}),
    ("pcf", {"dim": 2**26}),
    ("ickan", {"segments": 2**27}),
]


@pytest.mark.parametrize(("name", "change"), LARGE, ids=[f"{name} {next(iter(change))}" for name, change in LARGE])
def test_sizes_that_a_file_does_not_hold_are_refused_before_anything_is_allocated(
    name: str, change: dict[str, Any], tmp_path: Path
) -> None:
    path = forged(tmp_path, FILES[name](), change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024  # kilobytes


@pytest.mark.parametrize("older", [False, True])
def test_sizes_that_no_weight_shows_allocate_nothing(older: bool, tmp_path: Path) -> None:
    """Kernels know no size of an image; the units of x do, but in older files, which have one for all coordinates."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, change in (
        ("conv", {"shape": [10**6, 10**6]}),
        ("recurrent", {"steps": 10**12}),
        ("constant", {"dim": 10**12}),
    ):
        make = FILES.get(name, lambda: soctk.SOCICNN(3, hidden=(), linear=False))
        refused(forged(tmp_path, make(), change, tensors=FOR_ALL if older else None), "x_mean: the configuration has")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024


FOR_ALL = {"x_mean": torch.tensor(0.5, dtype=torch.float64), "x_scale": torch.tensor(2.0, dtype=torch.float64)}


@pytest.mark.parametrize("name", FILES)
def test_an_older_file_has_one_unit_for_all_coordinates(name: str, tmp_path: Path) -> None:
    model = FILES[name]()
    old = soctk.load(forged(tmp_path, model, tensors=FOR_ALL))
    model.set_standardization(x=(0.5, 2.0))
    x = torch.rand(3, model.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    context = torch.zeros(3, model.context_dim, dtype=torch.float64) if model.context_dim else None
    assert torch.equal(old(x, context), model.eval()(x, context))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16, torch.complex64, torch.bool])
def test_tensors_of_another_dtype_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    model = FILES["dense"]()
    weight = model.W[0].detach().to(dtype)
    refused(forged(tmp_path, model, tensors={"W.0": weight}), rf"W\.0.*float64.*{str(dtype).removeprefix('torch.')}")


@pytest.mark.parametrize("dtype", ["complex128", "int64", "bfloat16", "Tensor", "load", "", "float64 "])
def test_a_model_of_no_known_dtype_is_refused(dtype: str, tmp_path: Path) -> None:
    refused(forged(tmp_path, FILES["dense"](), dtype=dtype), "dtype: expected float32 or float64")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[]", "null", "{", "", "9" * 5000, '{"dim": NaN}'])
def test_a_configuration_that_is_no_json_object_is_refused(text: str, tmp_path: Path) -> None:
    refused(forged(tmp_path, FILES["dense"](), config=text), "config|dim")


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{", "9" * 5000])
def test_notes_that_are_no_json_object_are_refused(text: str, tmp_path: Path) -> None:
    path = forged(tmp_path, FILES["dense"](), notes=text)
    with pytest.raises(soctk.CheckpointError, match="notes"):
        read_notes(path)


@pytest.mark.parametrize("change", ["missing", "additional", "shape"])
def test_tensors_that_are_not_the_models_are_refused_by_name(change: str, tmp_path: Path) -> None:
    model = FILES["dense"]()
    tensors = {
        "missing": {},
        "additional": {"W.1": torch.zeros(5, 4, dtype=torch.float64)},
        "shape": {"W.0": torch.zeros(5, 3, dtype=torch.float64)},
    }[change]
    config = {"hidden": [5, 5]} if change == "missing" else {}
    message = {"missing": r"U_raw\.0", "additional": r"W\.1", "shape": r"W\.0.*\(5, 4\).*\(5, 3\)"}[change]
    refused(forged(tmp_path, model, config, tensors), message)


@pytest.mark.parametrize("unit", ["x_scale", "value_scale", "context_scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, torch.inf])
def test_units_that_are_not_positive_are_refused(unit: str, value: float, tmp_path: Path) -> None:
    model = FILES["dense"]()
    tensors = {unit: torch.full_like(getattr(model, unit), value)}
    refused(forged(tmp_path, model, tensors=tensors), unit)


# -- what is kept ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["conv", "recurrent"])
def test_what_was_kept_in_inference_mode_can_be_differentiated(name: str) -> None:
    """Places of windows are kept; made in inference mode, torch would refuse them in any later backward pass."""
    sizes = {"conv": (5, 2), "recurrent": (7, 2)}[name]  # of this test alone, so that nothing is kept before
    make = soctk.ConvSOCICNN if name == "conv" else soctk.RecurrentSOCICNN
    model = make(sizes, 1, layers=(2,), whole_norms=1) if name == "conv" else make(*sizes, 1, hidden=3)
    x, context = torch.ones(3, model.dim, dtype=torch.float64), torch.ones(3, model.context_dim, dtype=torch.float64)
    with torch.inference_mode():
        model(x, context)
        model.conic_form(context)
        model.features(x[:, None], context)
    model(x, context).sum().backward()
    model.conic_form(context).value(x).sum().backward()
    features = model.features(x[:, None], context)
    model.value_of(x[:, None], context, features).sum().backward()
