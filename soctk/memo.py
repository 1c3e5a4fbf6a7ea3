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

import torch
from torch import Tensor, nn

Answer = TypeVar("Answer")
_compare = (ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
"""The C library's comparison: at the memory's speed, with nothing made on the way."""
PLAIN = (nn.Parameter, Tensor)


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
        if not weights or not _may_keep() or type(weights[0].detach()) is not Tensor:
            return None  # in the last case whatever is computed now holds no numbers
        with self._lock:
            kept = self._kept.get(owner)
        now = key()
        try:
            if kept is not None and kept[1] == now and kept[0].holds(weights):
                return kept[2]
            if not all(_is_plain(weight) for weight in weights):
                return None
            with torch.inference_mode(False), torch.no_grad():  # the answer may outlive an inference mode
                snapshot = _Snapshot.of(weights)
        except RuntimeError:  # a transformation's stand-ins have no memory
            return None
        with torch.inference_mode(False), torch.no_grad():
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
        if torch.is_grad_enabled():
            return None  # before the walk: training comes here at every step
        weights, buffers, inside = contents(module)
        if not set(inside).issubset(kinds):
            return None
        tensors = weights + buffers

        def from_copies(copies: Sequence[Tensor]) -> Answer:
            return compute(_twin(module, {id(tensor): copy for tensor, copy in zip(tensors, copies, strict=True)}))

        return self.of(module, tensors, from_copies, lambda: (key(), inside))


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
            if view.dtype != dtype or view.shape != shape or not _is_plain(view):
                return False
            if _compare(view.data_ptr(), place, size) != 0:
                return False
        return True


def _may_keep() -> bool:
    """Whether no derivative may be wanted and PyTorch does not trace."""
    tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    return not torch.is_grad_enabled() and not tracing


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is numbers side by side in the processor's memory, none a stand-in."""
    return type(tensor) in PLAIN and tensor.is_cpu and tensor.is_contiguous()


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
        for tensors, known in ((weights, inside["_parameters"]), (buffers, inside["_buffers"])):
            if known:
                tensors += [tensor for tensor in known.values() if tensor is not None]
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
