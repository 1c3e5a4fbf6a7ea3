"""The first use of the compiled method: it is compiled in a thread of its own, and PyTorch decides meanwhile.

Compiling takes half a minute to a minute and a half on most machines, once: the code is kept on disk. Said once, by the
logger "soctk". With the environment variable SOCTK_COMPILE=wait nothing is decided before it is compiled, so that what
decides does not depend on the clock; `soctk.warmup` compiles everything beforehand.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

import numpy as np
import torch
from numba import typeof

from soctk.decide.compiled.dispatch import key_of
from soctk.decide.compiled.free_rows import reduce
from soctk.decide.compiled.iteration import make_advance_all
from soctk.decide.compiled.original_rows import measure
from soctk.decide.compiled.proof import make_prove
from soctk.decide.compiled.substitution import substitute
from soctk.decide.packed_model import PackedModel
from soctk.models.dense import SOCICNN
from soctk.simd.lanes import WIDTH
from soctk.terms import Term

LOOK_EVERY = 0.02
"""Seconds between looks at a thread that may load code from the disk, which takes less than a second."""
logger = logging.getLogger("soctk")
Kinds = tuple[type[Term], ...]
_methods: dict[Kinds, Method] = {}
_making = threading.Lock()


class Method:
    """The compiled method for forms of some kinds of terms; called as `make_advance_all`'s function is.

    It has two variants: for one instance at a time, and for several side by side.

    Attributes:
        function: what `make_advance_all` returns.
        prove: what `make_prove` returns.
    """

    def __init__(self, kinds: Kinds) -> None:
        key = key_of(kinds)
        self.function, self.prove = make_advance_all(key), make_prove(key)
        self._threads: dict[bool, threading.Thread] = {}
        self._errors: dict[bool, Exception] = {}
        self._ready: set[bool] = set()
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> None:
        self.function(*arguments)

    def ready(self, several: bool, *, wait: bool = False) -> bool:
        """Return whether a variant is compiled; if it is not, begin to compile it, and wait for that where asked to.

        What lies on the disk is always waited for.

        Raises:
            Exception: whatever stopped the compiler that was waited for.
        """
        if several in self._ready:
            return True
        with self._lock:
            thread = self._threads.get(several)
            if thread is None:
                missed = self._misses()
                thread = threading.Thread(target=self._compile, args=(several,), name="soctk compiler")
                self._threads[several] = thread
                thread.start()
                while thread.is_alive() and self._misses() == missed:
                    time.sleep(LOOK_EVERY)
                if thread.is_alive():
                    _say_that_it_compiles(self._place(), several, wait or waits())
        if wait or waits():
            thread.join()
        if several in self._errors and (wait or waits()):
            raise self._errors[several]
        return several in self._ready

    def _compile(self, several: bool) -> None:
        try:
            self.function.compile(tuple(map(typeof, of_iterations(several))))
            if not several:
                self.prove.compile(tuple(map(typeof, of_proofs())))
                _compile_others()
            self._ready.add(several)
        except Exception as error:
            self._errors[several] = error
            logger.error("soctk cannot compile its decision method, so that PyTorch decides, more slowly: %s", error)

    def _misses(self) -> int:
        """Return how often the compiler had to begin because nothing was on the disk."""
        return sum(self.function.stats.cache_misses.values())

    def _place(self) -> str | None:
        return self.function.stats.cache_path


def of_iterations(several: bool) -> tuple[Any, ...]:
    """Return arguments of the types that `make_advance_all`'s function takes."""
    integers, numbers, matrix = np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros((1, 1))
    memory = np.zeros((1, WIDTH)) if several else numbers
    return integers, matrix, numbers, matrix, matrix, matrix, numbers, memory, integers, 0, 0, 0


def of_proofs() -> tuple[Any, ...]:
    """Return arguments of the types that `make_prove`'s function takes."""
    integers, numbers, matrix = np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros((1, 1))
    matrices, places = (matrix, matrix, matrix, numbers, matrix), (integers, integers[None], integers[None])
    sets, found = (matrices, places, (matrix, matrix), (matrix,) * 6), (matrix,) * 3
    rest = np.zeros(1, dtype=bool), (numbers, numbers), (matrix,) * 4
    return integers, matrix, numbers, matrix, numbers, sets, found, *rest


@torch.no_grad()
def _compile_others() -> None:
    """Compile what goes to and from the iterations, before somebody wants it who would wait for the other variant's
    compiler."""
    reduce()
    substitute.compile(tuple(map(typeof, (np.zeros((1, 1)), 1, *(np.zeros((1, 1)),) * 4))))
    measure()
    coefficients = PackedModel.of(SOCICNN(2, 1, hidden=(2,)))
    assert coefficients is not None
    for count in (1, 2):  # rows of one context lie side by side, of several with others between
        coefficients.at(torch.zeros(count, 1, dtype=torch.float64))


def method_for(kinds: Kinds) -> Method:
    """Return the compiled method for forms of some kinds of terms.

    Threads that decide first make it one after the other: each would make the terms' kernels known to Numba, which
    takes no second function of the same name.
    """
    found = _methods.get(kinds)
    if found is None:
        with _making:
            found = _methods.get(kinds)
            if found is None:
                found = _methods[kinds] = Method(kinds)
    return found


def waits() -> bool:
    """Whether decisions wait for the compiler."""
    return os.environ.get("SOCTK_COMPILE") == "wait"


def _say_that_it_compiles(place: str | None, several: bool, waiting: bool) -> None:
    what = "for many contexts at a time" if several else "for one context at a time"
    meanwhile = "" if waiting else " Until then decisions are made more slowly, by PyTorch; the process ends after it."
    kept = (
        f"once: the code is kept in {place}" if place else "in every process: no folder for compiled code is writable"
    )
    remedy = "" if place else " (name one in NUMBA_CACHE_DIR)"
    logger.warning(
        "soctk compiles its decision method %s, which takes 30 to 90 seconds on most machines, %s%s.%s",
        *(what, kept, remedy, meanwhile),
    )
