"""Saving and loading models: safetensors weights, JSON configuration, sha256 of both.

A safetensors file holds tensors and text, nothing that could be executed. The header's metadata names the
surrogate's class by a registry, its constructor's arguments, the format's version and a digest of the tensors.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from soctk.surrogate import ConvexSurrogate

FORMAT = "soctk-model-1"
PACKAGES = ("soctk", "soctk_baselines")


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
        OSError: the file cannot be written; an old one is left as it was.
    """
    kind = type(model)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    metadata = {
        "format": FORMAT,
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "config": json.dumps(model.config()),
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    if notes is not None:
        metadata["notes"] = json.dumps(notes)
    metadata["sha256"] = _digest(metadata, tensors)
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        save_file(tensors, partial, metadata=metadata)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> ConvexSurrogate:
    """Return the model in a file.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file is not a soctk model, is truncated or altered, names an unknown class, does not
            fit its configuration, or holds weights that are not finite or make the function non-convex.
    """
    source = Path(path)
    metadata, tensors = _verified(source)
    model = _build(source, metadata)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{source}: the weights do not fit the configuration: {_one_line(error)}") from None
    _check_weights(source, model)
    return model.eval()


def read_notes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the notes that a model was saved with, {} where there are none.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file is not a soctk model, is truncated or altered.
    """
    return json.loads(_verified(Path(path))[0].get("notes", "{}"))


def _verified(source: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return a model file's metadata and tensors, which match their digest."""
    if not source.is_file():
        raise FileNotFoundError(f"path: no model file at {source}")
    metadata, tensors = _read(source)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{source}: expected format {FORMAT!r}, got {metadata.get('format')!r}")
    digest = metadata.pop("sha256", None)
    if digest != _digest(metadata, tensors):
        raise CheckpointError(f"{source}: the contents do not match their sha256; the file was altered")
    return metadata, tensors


def _read(source: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(source, framework="pt") as file:
            return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise CheckpointError(f"{source}: not a readable safetensors file: {_one_line(error)}") from None


def _build(source: Path, metadata: dict[str, str]) -> ConvexSurrogate:
    module, _, name = metadata.get("class", "").partition(":")
    if module.partition(".")[0] not in PACKAGES:
        raise CheckpointError(f"{source}: expected a class of {' or '.join(PACKAGES)}, got {metadata.get('class')!r}")
    try:
        kind = getattr(importlib.import_module(module), name)
        if not (isinstance(kind, type) and issubclass(kind, ConvexSurrogate)):
            raise TypeError(f"{name} is not a surrogate")
        model = kind(**json.loads(metadata["config"]))
        return model.to(getattr(torch, metadata["dtype"]))
    except (ImportError, AttributeError, TypeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{source}: cannot rebuild the model: {_one_line(error)}") from None


def _check_weights(source: Path, model: ConvexSurrogate) -> None:
    for name, tensor in model.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{source}: {name} holds a NaN or an infinity")
        if name.endswith("_scale") and not bool((tensor > 0).all()):
            raise CheckpointError(f"{source}: {name} must be positive, got {tensor.min().item():g}")
    if model.has_conic_form:
        try:
            model.conic_form(torch.zeros(model.context_dim) if model.context_dim else None)
        except ValueError as error:
            raise CheckpointError(f"{source}: {_one_line(error)}") from None


def _digest(metadata: dict[str, str], tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
