"""What the commands write: equally long columns in any kind of file, replaced only when the new one is complete."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pandas as pd

from soctk.files import replacing
from soctk.tables.table import ARRAYS, TABLE_FORMATS

COLUMN_FORMATS = (*TABLE_FORMATS, ARRAYS)


def write_columns(columns: Mapping[str, Any], path: Path, *, header: bool = True) -> None:
    """Write equally long columns, a .csv file with or without their names."""
    with replacing(path) as partial:
        if path.suffix == ".npz":
            _write_arrays(columns, partial)
        elif path.suffix == ".parquet":
            pd.DataFrame(columns).to_parquet(partial, index=False)
        else:
            pd.DataFrame(columns).to_csv(partial, index=False, header=header)


def _write_arrays(columns: Mapping[str, Any], path: Path) -> None:
    """Write what `np.savez_compressed` would, whose own arguments no column could be named as."""
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, column in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _plain(column), allow_pickle=False)


def _plain(column: Any) -> np.ndarray:
    """Return a column as an array without objects, which only pickle could write: texts, "" where one is missing."""
    array = np.asarray(column)
    if array.dtype.kind != "O":
        return array
    return np.array(
        ["" if missing else str(cell) for cell, missing in zip(array, pd.isna(array), strict=True)], dtype=str
    )
