"""The file of a decision: a header, arrays and machine code in NumPy's format .npz, without pickled objects."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from soctk.files import replacing
from soctk.runtime.code import MachineCode

FORMAT = "soctk-decisions-6"


class RuntimeFileError(ValueError):
    """A file holds no decisions that this version and this machine can make."""


class Contents(NamedTuple):
    """What is in a file.

    Attributes:
        header: what JSON can hold.
        arrays: float64 and int64 arrays by name.
        code: the compiled method.
    """

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]
    code: MachineCode


def write(path: str | os.PathLike[str], contents: Contents) -> str:
    """Write a file, replacing an old one only when the new one is complete; return its sha256.

    Raises:
        OSError: the file cannot be written; an old one is left as it was.
    """
    header, arrays, code = contents
    described = {field.name: getattr(code, field.name) for field in dataclasses.fields(code)}
    blocks = {name: np.frombuffer(described.pop(name), np.uint8) for name in ("object", "bitcode")}
    text = json.dumps({"format": FORMAT, "code": described} | header).encode()
    stream = io.BytesIO()
    np.savez(stream, header=np.frombuffer(text, np.uint8), **blocks, **arrays)  # type: ignore[arg-type]
    with replacing(Path(path)) as partial:
        partial.write_bytes(stream.getvalue())
    return hashlib.sha256(stream.getvalue()).hexdigest()


def read(path: str | os.PathLike[str], sha256: str | None = None) -> Contents:
    """Return what is in a file; nothing of it is executed.

    Raises:
        FileNotFoundError: there is no such file.
        RuntimeFileError: it is damaged, of another kind or version, or has another sha256.
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"path: no file of decisions at {source}")
    content = source.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256.lower():
        raise RuntimeFileError(f"{source}: expected sha256 {sha256}, got {found}; it is another file")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as members:
            arrays = dict(members)
        header = dict(json.loads(arrays.pop("header").tobytes()))
    except Exception as error:  # whatever damage leads to
        raise RuntimeFileError(
            f"{source}: expected a file of soctk.to_runtime, got something else or a damaged one ({error})"
        ) from None
    if header.get("format") != FORMAT:
        raise RuntimeFileError(
            f"{source}: expected format {FORMAT!r}, got {header.get('format')!r}; write it with this version of soctk"
        )
    missing = sorted({"object", "bitcode"} - set(arrays))
    if missing or not isinstance(header.get("code"), dict):
        raise RuntimeFileError(
            f"{source}: expected the compiled method, got a file without {', '.join(missing) or 'it'}"
        )
    blocks = {name: arrays.pop(name).tobytes() for name in ("object", "bitcode")}
    return Contents(header, arrays, MachineCode(**header["code"], **blocks))
