"""The client of a dask cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from soctk_evaluation.harness.request import UsageError


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Yield a client of the scheduler at an address, or this process's own (None); say where it has no workers yet.

    Raises:
        UsageError: the package is not installed, there is no client, or this is no address.
        OSError: no scheduler answers there.
    """
    if find_spec("distributed") is None:
        raise UsageError('a dask cluster needs the package distributed: pip install "soctk[cluster]"')
    import distributed  # pyright: ignore[reportMissingImports]

    if address is None:
        try:
            own = distributed.get_client()
        except ValueError:
            raise UsageError("--backend dask: expected --scheduler ADDRESS, as tcp://host:8786") from None
        yield own
        return
    try:
        client = distributed.Client(address)
    except ValueError as error:
        raise UsageError(f"--scheduler: expected an address, as tcp://host:8786, got {address} ({error})") from None
    with client:
        if not client.nthreads():
            print(f"soctk: no workers at {address} yet: waiting for some", file=sys.stderr)
        yield client
