"""Keeping what was computed from weights for as long as they hold exactly the same bits.

Neither a tensor's identity nor its version counter tells whether its numbers are the same (edits through `.data` and
through NumPy are not counted), so the numbers themselves are compared: less work than almost anything done with them.
"""

from __future__ import annotations

import copy
import ctypes
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

Answer = TypeVar("Answer")
_compare = (ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
"""The C library's comparison: at the memory's speed, with nothing made on the way."""


class Memo(Generic[Answer]):
    """One answer for each module, forgotten with it; no part of the module, of its copies or of what is saved."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[nn.Module, tuple[_Snapshot, Any, Answer]] = WeakKeyDictionary()
        self._lock = Lock()

    def of(
        self,
        owner: nn.Module,
        weights: Sequence[Tensor],
        compute: Callable[[Sequence[Tensor]], Answer],
        key: Callable[[], object] = lambda: (),
    ) -> Answer | None:
        """Return compute(weights), or the last answer where weights and key are what it was computed from.

        None where nothing is kept: where a derivative may be wanted, while PyTorch traces or transforms, and of tensors
        whose numbers do not lie side by side in the processor's memory. Computed from copies, so that a change by
        another thread meanwhile is not missed. The answer is not to be changed.
        """
        if not _may_keep() or not _are_plain(weights) or type(weights[0].detach()) is not Tensor:
            return None  # in the last case whatever is computed now holds no numbers
        with self._lock:
            kept = self._kept.get(owner)
        with torch.inference_mode(False), torch.no_grad():  # the answer may outlive an inference mode
            try:
                now = key()
                if kept is not None and kept[1] == now and kept[0].holds(weights):
                    return kept[2]
                snapshot = _Snapshot.of(weights)
            except (RuntimeError, TypeError):  # a transformation's stand-ins have no memory, and NumPy knows few types
                return None
            answer = compute(snapshot.copies)
        if key() == now:  # what is no tensor is not copied
            with self._lock:
                self._kept[owner] = snapshot, now, answer
        return answer

    def of_module(
        self,
        module: nn.Module,
        kinds: Collection[type],
        compute: Callable[[Any], Answer],
        key: Callable[[], object] = lambda: (),
    ) -> Answer | None:
        """Return compute(module) as `of` does, where weights, buffers, key and the classes inside are what they were.

        None also where a module inside is of none of the classes `kinds`, has hooks or a `forward` of its own.
        `compute` is given a twin that holds copies and that nobody else will change.
        """
        if not _may_keep():
            return None  # before the walk: training comes here at every step
        weights, buffers, inside = contents(module)
        if not set(inside).issubset(kinds):
            return None
        held: list[np.ndarray] = []

        def with_buffers() -> object:
            held[:] = [buffer.numpy().copy() for buffer in buffers]
            return key(), inside, [(numbers.dtype, numbers.shape, numbers.tobytes()) for numbers in held]

        def from_copies(copies: Sequence[Tensor]) -> Answer:
            tensors = {id(weight): copy for weight, copy in zip(weights, copies, strict=True)}
            tensors |= {id(buffer): torch.from_numpy(numbers) for buffer, numbers in zip(buffers, held, strict=True)}
            return compute(_twin(module, tensors))

        return self.of(module, weights, from_copies, with_buffers)


@dataclass(frozen=True, eq=False)
class _Snapshot:
    """The numbers of some tensors at one time: copies, and of each its type, its shape, its place and its bytes."""

    copies: list[Tensor]
    places: list[tuple[torch.dtype, torch.Size, int, int]]

    @classmethod
    def of(cls, weights: Sequence[Tensor]) -> _Snapshot:
        copies = [weight.detach().clone() for weight in weights]
        return cls(copies, [(copy.dtype, copy.shape, copy.data_ptr(), copy.nbytes) for copy in copies])

    def holds(self, weights: Sequence[Tensor]) -> bool:
        """Whether the tensors are bit for bit what they were: NaN is then itself, and -0 is not 0."""
        if len(weights) != len(self.places):
            return False
        for weight, (dtype, shape, place, size) in zip(weights, self.places, strict=True):
            view = weight.data  # keeps the memory, should another thread give the parameter other memory meanwhile
            if view.dtype != dtype or view.shape != shape or _compare(view.data_ptr(), place, size) != 0:
                return False
        return True


def _may_keep() -> bool:
    """Whether no derivative may be wanted and PyTorch does not trace."""
    tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    return not torch.is_grad_enabled() and not tracing


def _are_plain(weights: Sequence[Tensor]) -> bool:
    """Whether there are tensors and all are numbers side by side in the processor's memory, none a stand-in."""
    return len(weights) > 0 and all(
        type(weight) is nn.Parameter and weight.is_cpu and weight.is_contiguous() for weight in weights
    )


def contents(module: nn.Module) -> tuple[list[Tensor], list[Tensor], list[type]]:
    """Return the parameters, the buffers and the classes of all modules inside; `nn.Module`'s own walks take longer.

    The class of a module that has hooks or a `forward` of its own counts as `object`.
    """
    weights: list[Tensor] = []
    buffers: list[Tensor] = []
    kinds: list[type] = []
    stack: list[nn.Module] = [module]
    while stack:
        inside = stack.pop().__dict__
        weights += [tensor for tensor in inside["_parameters"].values() if tensor is not None]
        buffers += [tensor for tensor in inside["_buffers"].values() if tensor is not None]
        if inside["_forward_pre_hooks"] or inside["_forward_hooks"] or "forward" in inside:
            kinds.append(object)
        for child in inside["_modules"].values():
            if child is not None:
                stack.append(child)
                kinds.append(type(child))
    return weights, buffers, kinds


def _twin(module: Any, tensors: Mapping[int, Tensor]) -> Any:
    """Return a module of other tensors, found by the identity of its own; what else it has is shared."""
    other = copy.copy(module)
    for name in ("_parameters", "_buffers"):
        own = module.__dict__[name].items()
        other.__dict__[name] = {key: None if tensor is None else tensors[id(tensor)] for key, tensor in own}
    children = module.__dict__["_modules"].items()
    other.__dict__["_modules"] = {key: None if child is None else _twin(child, tensors) for key, child in children}
    return other
