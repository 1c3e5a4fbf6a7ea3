"""Saving and loading models: safetensors weights, JSON configuration, sha256 of both.

A safetensors file holds tensors and text, nothing that could be executed. The header's metadata names the class, its
constructor's arguments, the format's version, where the data were that it was learned from, and a digest of all.

What a file says is not believed. Its class is looked up among the registered ones (`soctk.registry`). The model is
built without memory first, on torch's meta device, and its tensors' names, shapes and dtypes are compared with the
file's: a configuration of sizes that the file does not hold is refused before anything is allocated for it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from soctk.checks import as_json, check_notes
from soctk.files import replacing
from soctk.function import DTYPES, check_function
from soctk.lazy import cvxpy as cp
from soctk.registry import class_name, surrogate_class
from soctk.support import Support
from soctk.surrogate import ConvexSurrogate

FORMAT, LIMITED = "soctk-model-1", "soctk-model-2"
"""Of files, and of those of models with a `context_range`, which versions from before there was any do not know."""
RANGES = "context_ranges"
UNITS = ("x_scale", "value_scale", "context_scale")
CONFIG_LENGTH, CONFIG_LENGTH_PER_TENSOR = 2**14, 2**8
"""Characters of a configuration: those allowed, and more for every tensor of the file that it describes."""
PLACES = ("mean", "beside")
"""Where a model's values are kept, so that another function is noticed: the mean of its units, and a point about it."""
MOST_COORDINATES = 2**24
"""Of older files, whose tensors do not show how many coordinates there are: what a forged one may make room for."""


class CheckpointError(ValueError):
    """A file is not a model that this version can trust and load."""


def save(model: ConvexSurrogate, path: str | os.PathLike[str], *, notes: Mapping[str, Any] | None = None) -> None:
    """Write a model to one file, replacing an old one only when the new one is complete.

    Args:
        model: the model.
        path: the file.
        notes: what else is to be known of the model, such as the names of its inputs; anything JSON can hold.

    Raises:
        NotImplementedError: the surrogate has no `config()`.
        TypeError: its class is not registered, or its `config()` does not rebuild it; notes that are no dictionary.
        ValueError: a weight that is not finite or makes the function non-convex.
        OSError: the file cannot be written; an old one is left as it was.
    """
    metadata, tensors = _described(model)
    if notes is not None:
        metadata["notes"] = as_json(check_notes(notes), "notes")
    if model.support is not None:
        metadata["support"] = json.dumps(model.support.plain())
    metadata["sha256"] = _digest(metadata, tensors)
    try:
        with replacing(Path(path)) as partial:
            save_file(tensors, partial, metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"{os.fspath(path)}: the model was not written ({error})") from None


def check_saves(model: ConvexSurrogate) -> None:
    """Raise the errors of `save` that are the model's, so that nothing is learned that cannot be kept."""
    _described(model)


def load(path: str | os.PathLike[str]) -> ConvexSurrogate:
    """Return the model in a file.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file is not a soctk model, is truncated or altered, names a class that is not registered,
            does not fit its configuration, or holds weights that are not finite or make the function non-convex.
    """
    source = Path(path)
    metadata, tensors = _verified(source)
    with _refusing(source, "cannot rebuild the model"):
        described = (metadata.get("class", ""), metadata.get("config", ""), metadata.get("dtype", ""))
        blank = _blank(*described, len(tensors))
        _spread_units(blank, tensors)
        _check_layout(blank, tensors)
        model = _built(*described)
        model.load_state_dict(tensors)
    if RANGES in metadata:
        with _refusing(source, "cannot read the ranges of contexts"):
            _limit(model, _parsed(metadata[RANGES], RANGES))
    with _refusing(source, "not a convex model"):
        _check_weights(model)
    if "values" in metadata:
        with _refusing(source, "not the function that was saved"):
            values = _parsed(metadata["values"], "values")
            _check_values(model, [float(values[place]) for place in PLACES])
    if "support" in metadata:
        with _refusing(source, "cannot read where its data were"):
            model.support = Support.from_plain(_parsed(metadata["support"], "support"), model.dim, model.context_dim)
    return model.eval()


def read_notes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the notes that a model was saved with, {} where there are none.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file is not a soctk model, is truncated or altered.
    """
    source = Path(path)
    metadata, _ = _verified(source)
    with _refusing(source, "cannot read the notes"):
        return _parsed(metadata.get("notes", "{}"), "notes")


# -- files -------------------------------------------------------------------------------------------------


@contextmanager
def _refusing(source: Path, what: str) -> Iterator[None]:
    """Turn whatever a file's contents lead to into a CheckpointError: constructors may raise anything."""
    try:
        yield
    except Exception as error:
        raise CheckpointError(f"{source}: {what}: {_one_line(error)}") from error


def _verified(source: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return a model file's metadata and tensors, which match their digest."""
    if not source.is_file():
        raise FileNotFoundError(f"path: no model file at {source}")
    with _refusing(source, "not a readable safetensors file"), safe_open(source, framework="pt") as file:
        metadata, tensors = dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if metadata.get("format") not in (FORMAT, LIMITED):
        raise CheckpointError(f"{source}: expected format {FORMAT!r} or {LIMITED!r}, got {metadata.get('format')!r}")
    digest = metadata.pop("sha256", None)
    if digest != _digest(metadata, tensors):
        raise CheckpointError(f"{source}: the contents do not match their sha256; the file was altered")
    return metadata, tensors


def _digest(metadata: dict[str, str], tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


# -- models ------------------------------------------------------------------------------------------------


def _described(model: ConvexSurrogate) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return what a file says of a model, from which it is rebuilt, and its tensors."""
    check_function(model)
    name, config, dtype = class_name(type(model)), as_json(model.config(), "config"), str(model.dtype)
    _check_weights(model)
    ranges = _ranges_of(model)
    # copies: a model may hold another one twice
    tensors = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in model.state_dict().items()}
    try:
        if surrogate_class(name) is not type(model):
            raise ValueError(f"another class is registered as {name}")
        _check_layout(_blank(name, config, dtype, len(tensors)), tensors)
        rebuilt = _built(name, config, dtype)
        rebuilt.load_state_dict(tensors)
        _limit(rebuilt, ranges)
        values, found = _values(model), _values(rebuilt)
        if not _agree(values, found, model):
            raise ValueError(
                f"its values are others, {_differing(values, found)}: config() must have every argument of the "
                "constructor that they depend on"
            )
    except Exception as error:
        raise TypeError(
            f"model: soctk.load could not rebuild this {type(model).__name__}: {_one_line(error)}"
        ) from error
    metadata = {"format": FORMAT, "class": name, "config": config, "dtype": dtype.removeprefix("torch.")}
    if all(map(math.isfinite, values)):
        metadata["values"] = json.dumps(dict(zip(PLACES, values, strict=True)))
    if ranges:
        metadata |= {"format": LIMITED, RANGES: json.dumps(ranges)}
    return metadata, tensors


def _built(name: str, config: str, dtype: str) -> ConvexSurrogate:
    """Return the model with its initial weights."""
    known = {str(kind).removeprefix("torch."): kind for kind in DTYPES}
    wanted = known.get(dtype.removeprefix("torch."))
    if wanted is None:
        raise ValueError(f"dtype: expected {' or '.join(known)}, got {dtype!r}")
    return surrogate_class(name)(**_parsed(config, "config")).to(wanted)


def _ranges_of(model: ConvexSurrogate) -> dict[str, list[list[float]]]:
    """Return every `context_range` of a model and the models inside, by the module's name."""
    parts = model.named_modules(remove_duplicate=False)
    known = ((name, part.context_range) for name, part in parts if isinstance(part, ConvexSurrogate))
    return {name: ends.double().tolist() for name, ends in known if ends is not None}


def _limit(model: ConvexSurrogate, ranges: dict[str, list[list[float]]]) -> None:
    """Set what `_ranges_of` returned."""
    parts = dict(model.named_modules(remove_duplicate=False))
    for name, ends in ranges.items():
        part, found = parts.get(name), torch.tensor(ends, dtype=torch.float64)
        if not isinstance(part, ConvexSurrogate):
            raise ValueError(f"{RANGES}: expected names of models in this one, got {name!r}")
        if found.shape != (2, part.context_dim) or not bool((found[0] <= found[1]).all()):
            raise ValueError(f"{RANGES}: expected the least and the largest of {part.context_dim} numbers, got {ends}")
        part.context_range = found.to(part.context_mean)


def _blank(name: str, config: str, dtype: str, tensors: int) -> ConvexSurrogate:
    """Return the model on the meta device, where tensors have shapes and no memory."""
    allowed = CONFIG_LENGTH + CONFIG_LENGTH_PER_TENSOR * tensors
    if len(config) > allowed:
        raise ValueError(f"config: expected at most {allowed} characters for {tensors} tensors, got {len(config)}")
    with torch.device("meta"):
        return _built(name, config, dtype)


def _spread_units(model: ConvexSurrogate, tensors: dict[str, Tensor]) -> None:
    """Give every coordinate of x the mean and scale that a file has for all, as older files have."""
    for name, wanted in model.state_dict().items():
        given = tensors.get(name)
        if name.split(".")[-1] not in ("x_mean", "x_scale") or given is None or given.ndim > 0:
            continue
        if wanted.numel() <= MOST_COORDINATES:
            tensors[name] = given.expand(wanted.shape).clone()


def _check_layout(model: ConvexSurrogate, tensors: dict[str, Tensor]) -> None:
    """Raise ValueError naming a tensor that is missing, is not the model's or has another shape or dtype."""
    expected = model.state_dict()
    for name in sorted(expected.keys() | tensors.keys()):
        wanted, given = (_layout(mapping.get(name)) for mapping in (expected, tensors))
        if wanted != given:
            raise ValueError(f"{name}: the configuration has {wanted}, the file {given}")


@torch.no_grad()
def _values(model: ConvexSurrogate) -> list[float]:
    """Return a model's values at `PLACES`, out of training."""
    modes = [(module, module.training) for module in model.modules()]
    count = max(model.dim, model.context_dim)
    away = torch.arange(count, dtype=torch.float64).cos()
    places = torch.stack([torch.zeros_like(away), away])
    try:
        model.eval()
        x = model.x_mean + model.x_scale * places[:, : model.dim].to(model.x_mean)
        context = model.context_mean + model.context_scale * places[:, : model.context_dim].to(model.context_mean)
        with torch.autocast(model.device.type, enabled=False):
            return model(x, context if model.context_dim else None).double().cpu().tolist()
    finally:
        for module, training in modes:
            module.training = training


def _agree(values: list[float], others: list[float], model: ConvexSurrogate) -> bool:
    """Whether two lists of a model's values are the same but for rounding."""
    of_scale, of_size = (1e-6, 1e-10) if model.dtype == torch.float64 else (1e-3, 1e-5)
    size = of_scale * float(model.value_scale) + of_size * np.abs(values).max()
    return not math.isfinite(size) or bool(np.allclose(values, others, rtol=0.0, atol=size))


def _differing(values: list[float], others: list[float]) -> str:
    """Return in words the value that differs most, of two lists."""
    place = int(np.argmax(np.abs(np.subtract(values, others))))
    return f"{others[place]:.8g} in place of {values[place]:.8g}"


def _check_values(model: ConvexSurrogate, values: list[float]) -> None:
    """Raise ValueError where a model's values are not those that it was saved with."""
    found = _values(model)
    if not _agree(values, found, model):
        raise ValueError(
            f"its values are others now, {_differing(values, found)}: the class or what it uses has changed; install "
            "the version that it was saved with, or learn the model again"
        )


def _layout(tensor: Tensor | None) -> str:
    return "none" if tensor is None else f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _check_weights(model: ConvexSurrogate) -> None:
    for name, tensor in model.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} holds a NaN or an infinity")
        if name in UNITS and not bool((tensor > 0).all()):
            raise ValueError(f"{name} must be positive, got {tensor.min().item():g}")
    if model.convex_by_construction:
        return
    context = torch.zeros(model.context_dim, dtype=model.dtype) if model.context_dim else None
    if model.has_conic_form:
        model.conic_form(context)
    else:
        if not model.to_cvxpy(cp.Variable(model.dim), context).is_convex():
            raise ValueError("its CVXPY expression is not convex by the rules of disciplined convex programming")


def _parsed(text: str, name: str) -> dict[str, Any]:
    """Return a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: not JSON that can be read: {_one_line(error)}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{name}: expected a JSON object, got {type(value).__name__}")
    return value


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
