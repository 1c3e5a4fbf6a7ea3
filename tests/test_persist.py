"""Files: what is saved comes back, and nothing else is believed."""

from __future__ import annotations

import json
import pickle
import struct

import cvxpy as cp
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from unchecked import write_unchecked

import soctk
from soctk import registry
from soctk.io.checkpoint import _digest


@pytest.fixture
def saved(tmp_path):
    model = soctk.SOCICNN(4, 2, norms=(3,), hyperbolics=2, structures=((), ("norm0",)), structure=0, seed=3)
    path = tmp_path / "model.safetensors"
    soctk.save(model, path)
    return model, path


def rewrite_header(path, change) -> None:
    """Change the JSON header of a safetensors file in place."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def test_round_trip_is_exact(saved):
    model, path = saved
    x, context = torch.rand(7, 4, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    loaded = soctk.load(path)
    assert torch.equal(loaded(x, context), model(x, context))
    assert loaded.config() == model.config()


STRUCTURES = ((), ("norm0",), ("norm0", "hyperbolics"))
WITH_STRUCTURES = {
    "dense": lambda structure: soctk.SOCICNN(
        4, 2, norms=(3,), hyperbolics=2, structures=STRUCTURES, structure=structure, seed=3
    ),
    "average": lambda structure: soctk.average([WITH_STRUCTURES["dense"](k) for k in (structure, 2)]),
    "windows": lambda structure: soctk.RecurrentSOCICNN(4, 1, structure=structure, seed=3),
}


@pytest.mark.parametrize("name", WITH_STRUCTURES)
def test_a_state_dict_has_the_structure_that_was_chosen(tmp_path, name):
    """PyTorch's own way: "All keys matched", and another function, with blocks that the fit had left out."""
    model, other = WITH_STRUCTURES[name](0), WITH_STRUCTURES[name](1)
    if name == "dense":
        model.set_structure(2, ("norm0",))
    x = torch.rand(7, model.dim, dtype=torch.float64)
    context = torch.randn(7, model.context_dim, dtype=torch.float64)
    assert not torch.equal(other(x, context), model(x, context))
    torch.save(model.state_dict(), tmp_path / "state")
    other.load_state_dict(torch.load(tmp_path / "state"))
    assert torch.equal(other(x, context), model(x, context))
    assert other.config() == model.config()
    assert other.parameter_count == model.parameter_count


def test_a_state_dict_of_structures_that_there_are_not_is_refused():
    model = WITH_STRUCTURES["dense"](2)
    fewer = soctk.SOCICNN(4, 2, norms=(3,), hyperbolics=2, structures=STRUCTURES[:2], seed=3)
    with pytest.raises(RuntimeError, match="structure: index: expected 0 to 1, got 2"):
        fewer.load_state_dict(model.state_dict())


def test_sizes_may_be_numpy_integers(tmp_path):
    three = np.int64(3)
    for model in (
        soctk.SOCICNN(three, three, hidden=(three,), norms=[three], hyperbolics=three, seed=three),
        soctk.RecurrentSOCICNN(three, three, hidden=three, norms=three, seed=three),
        soctk.ConvSOCICNN((three, 3), three, layers=(three,), seed=three),
    ):
        soctk.save(model, tmp_path / "model")
        loaded = soctk.load(tmp_path / "model")
        assert loaded.config() == model.config()
        assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_a_malicious_pickle_is_never_executed(tmp_path):
    marker = tmp_path / "executed"

    class Attack:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps(Attack()))
    with pytest.raises(soctk.CheckpointError, match="safetensors"):
        soctk.load(path)
    assert not marker.exists()


def test_truncated(saved):
    _, path = saved
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(soctk.CheckpointError, match="safetensors"):
        soctk.load(path)


def test_flipped_bit(saved):
    _, path = saved
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(soctk.CheckpointError, match="sha256"):
        soctk.load(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("format", "other", "format"), ("class", "os:system", "sha256"), ("config", "{}", "sha256")],
)
def test_altered_header(saved, key, value, message):
    _, path = saved
    rewrite_header(path, lambda header: header["__metadata__"].update({key: value}))
    with pytest.raises(soctk.CheckpointError, match=message):
        soctk.load(path)


def test_a_class_that_is_not_registered_is_refused_even_with_a_valid_digest(tmp_path, monkeypatch):
    class Foreign(soctk.SOCICNN):
        pass

    with pytest.raises(TypeError, match=r"Foreign.*register_surrogate_class"):
        soctk.save(Foreign(2), tmp_path / "model")
    monkeypatch.setattr(registry, "_classes", dict(registry._classes))
    soctk.register_surrogate_class(Foreign)
    soctk.save(Foreign(2), tmp_path / "model")
    assert type(soctk.load(tmp_path / "model")) is Foreign
    monkeypatch.undo()
    with pytest.raises(soctk.CheckpointError, match=r"class: .*Foreign"):
        soctk.load(tmp_path / "model")


@pytest.mark.parametrize("name", ["os:system", "soctk.surrogate:ConvexSurrogate", "soctk.sets:Box", "soctk:losses", ""])
def test_nothing_but_a_registered_class_is_built(saved, name):
    """With a digest that fits."""
    _, path = saved

    def change(header):
        metadata = header["__metadata__"]
        metadata["class"] = name
        metadata.pop("sha256")
        metadata["sha256"] = _digest(metadata, load_file(path))

    rewrite_header(path, change)
    with pytest.raises(soctk.CheckpointError, match="class: expected a registered surrogate"):
        soctk.load(path)


def test_a_file_has_nothing_imported(saved, tmp_path, monkeypatch):
    """Neither the module that it names nor any other of a package that registered no surrogate."""
    _, path = saved
    (tmp_path / "unregistered.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)

    def change(header):
        metadata = header["__metadata__"]
        metadata["class"] = "unregistered:Model"
        metadata.pop("sha256")
        metadata["sha256"] = _digest(metadata, load_file(path))

    rewrite_header(path, change)
    with pytest.raises(soctk.CheckpointError, match="class"):
        soctk.load(path)


def test_a_model_that_its_configuration_does_not_rebuild_is_not_saved(tmp_path):
    class Forgetful(soctk.SOCICNN):
        def config(self):
            return {**super().config(), "hidden": (3,)}

    soctk.register_surrogate_class(Forgetful)
    with pytest.raises(TypeError, match=r"could not rebuild this Forgetful: U_raw\.0"):
        soctk.save(Forgetful(2, hidden=(3, 3)), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_model_that_its_configuration_rebuilds_as_another_function_is_not_saved(tmp_path):
    """An argument that moves no tensor, left out of config(): another function was loaded, without a word."""

    @soctk.register_surrogate_class
    class Boosted(soctk.SOCICNN):
        def __init__(self, *args, boost=1.0, **more):
            super().__init__(*args, **more)
            self.boost = boost

        def _context_map(self):
            return None

        def _conic_form(self, context):
            form = super()._context_map().form(context)
            return form.scaled(torch.full((1,), self.boost, dtype=self.dtype))

    path = tmp_path / "model"
    for mode in (True, False):
        model = Boosted(3, 2, quadratics=(3,), boost=7.0).train(mode)
        with pytest.raises(TypeError, match=r"its values are others, .* config\(\) must have every argument"):
            soctk.save(model, path)
        assert model.training == mode
    assert not list(tmp_path.iterdir())
    soctk.save(Boosted(3, 2, quadratics=(3,)), path)  # as the default has it
    assert isinstance(soctk.load(path), Boosted)


def test_a_surrogate_without_a_conic_form_is_checked_by_its_expression(tmp_path):
    @soctk.register_surrogate_class
    class Power(soctk.ConvexSurrogate):
        """sum_i sign |x_i|^p, convex for sign = 1 alone."""

        def __init__(self, dim):
            super().__init__(dim)
            self.register_buffer("sign", torch.ones((), dtype=torch.float64))

        def _value(self, x, context):
            return self.sign * x.abs().pow(3).sum(dim=-1)

        def _expression(self, x, context):
            return float(self.sign) * cp.sum(cp.power(cp.abs(x), 3))

        def config(self):
            return {"dim": self.dim}

    model = Power(3)
    soctk.save(model, tmp_path / "model")
    x = torch.randn(5, 3, dtype=torch.float64)
    assert torch.equal(soctk.load(tmp_path / "model")(x), model(x))
    model.sign.neg_()
    with pytest.raises(ValueError, match="not convex"):
        soctk.save(model, tmp_path / "model")
    write_unchecked(model, tmp_path / "model")
    with pytest.raises(soctk.CheckpointError, match="not convex"):
        soctk.load(tmp_path / "model")


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path):
    model = soctk.SOCICNN(3)
    with torch.no_grad():
        model.W[0][0, 0] = torch.nan
    write_unchecked(model, tmp_path / "model")
    with pytest.raises(soctk.CheckpointError, match=r"W\.0"):
        soctk.load(tmp_path / "model")


def test_missing_file():
    with pytest.raises(FileNotFoundError, match="no model file"):
        soctk.load("does-not-exist")


def test_a_failed_save_leaves_the_old_file(saved, monkeypatch):
    model, path = saved
    before = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("soctk.io.checkpoint.save_file", full)
    with pytest.raises(OSError, match="space"):
        soctk.save(model, path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


TAMPERED = {
    "network0_weights": "network.c",
    "network0_U2": "network.U2",
    "quadratic1_weights": "quadratic.alpha",
    "norms2_weights": "norms.lambda",
}


@pytest.mark.parametrize("buffer", TAMPERED)
def test_a_negative_weight_is_refused_by_name_wherever_it_comes_from(buffer: str, tmp_path) -> None:
    """Set by hand, the model is refused by `conic_form`, `to_cvxpy`, `minimize` and `save`; in a file, by `load`."""
    learned = soctk.SOCICNN(4, 2, hidden=(5, 4), quadratics=(4,), norms=(2,), seed=1)
    model = soctk.ExactSurrogate.of(learned.conic_form(torch.zeros(2)).detach())
    getattr(model, buffer)[..., 0] = -0.5
    name = TAMPERED[buffer]
    with pytest.raises(ValueError, match=rf"{name}: expected non-negative"):
        model.conic_form()
    with pytest.raises(ValueError, match=rf"{name}: expected non-negative"):
        model.to_cvxpy(cp.Variable(4))
    with pytest.raises(ValueError, match=rf"{name}: expected non-negative"):
        soctk.minimize(model, soctk.Simplex(4))
    with pytest.raises(ValueError, match=rf"{name}: expected non-negative"):
        soctk.save(model, tmp_path / "tampered.safetensors")
    write_unchecked(model, tmp_path / "tampered.safetensors")
    with pytest.raises(soctk.CheckpointError, match=rf"{name}: expected non-negative"):
        soctk.load(tmp_path / "tampered.safetensors")


def test_what_could_not_be_loaded_is_not_written(saved):
    model, path = saved
    before = path.read_bytes()
    with pytest.raises(TypeError, match="notes"):
        soctk.save(model, path, notes=[1])
    with pytest.raises(TypeError, match=r"^notes: expected what JSON can hold, got set"):
        soctk.save(model, path, notes={"rows": {1}})
    next(model.parameters()).data.fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN"):
        soctk.save(model, path)
    assert path.read_bytes() == before


def test_a_model_may_be_in_an_average_twice(saved, tmp_path):
    model, _ = saved
    twice, path = soctk.average([model, model]), tmp_path / "twice.safetensors"
    soctk.save(twice, path)
    x, context = torch.rand(7, 4, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    assert torch.equal(soctk.load(path)(x, context), twice(x, context))
    with pytest.raises(TypeError, match=r"soctk\.average"):
        soctk.AverageSurrogate([model, model])
