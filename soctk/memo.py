"""Keeping what was computed from weights for as long as they hold exactly the same bits.

Neither a tensor's identity nor its version counter tells whether its numbers are the same (edits through `.data` and
through NumPy are not counted), so the numbers themselves are compared: less work than almost anything done with them.
Where one value is wanted at a time even that is felt: `frozen` is a promise instead, compared once, at its end.
"""

from __future__ import annotations

import copy
import ctypes
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

Answer = TypeVar("Answer")
Key = Callable[[], object]
"""Returns what else an answer depends on than tensors."""
_compare = (ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
"""The C library's comparison: at the memory's speed, with nothing made on the way."""


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Promise that nothing changes in a model, or in the models inside it, within the block.

    For values and decisions one at a time: what depends on the weights alone is taken as it is at its first use in the
    block, without comparing the weights at every call as otherwise. They are compared once, at the end: a change that
    is taken back before, such as weights lent by `torch.func.functional_call`, is not seen. The promise holds for the
    thread or asynchronous task that enters the block, and has no effect on what autograd differentiates.

    Raises:
        RuntimeError: at the end, where it was broken.
    """
    promised: dict[nn.Module, dict[Memo[Any], tuple[_Kept[Any], Key]]] = {module: {} for module in model.modules()}
    token = _PROMISED.set({**_PROMISED.get(), **promised})
    try:
        yield
    finally:
        _PROMISED.reset(token)
    for module, used in promised.items():
        for kept, key in used.values():
            weights, buffers, inside = _contents(module)
            if not kept.is_of([*weights, *buffers], (key(), inside)):
                raise RuntimeError(
                    f"{type(module).__name__} was changed inside `soctk.frozen`: values and decisions made there may "
                    "be those of the weights before. Change weights outside the block, or do without it."
                )


class Memo(Generic[Answer]):
    """One answer for each module, forgotten with it; no part of the module, of its copies or of what is saved."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[nn.Module, _Kept[Answer]] = WeakKeyDictionary()
        self._lock = Lock()

    def of(
        self,
        owner: nn.Module,
        weights: Sequence[Tensor],
        compute: Callable[[Sequence[Tensor]], Answer],
        key: Key = lambda: (),
    ) -> Answer | None:
        """Return compute(weights), or the last answer where weights and key are what it was computed from.

        None where nothing is kept: where a derivative may be wanted, while PyTorch traces or transforms, and of tensors
        whose numbers do not lie side by side in the processor's memory. Computed from copies, so that a change by
        another thread meanwhile is not missed. The answer is not to be changed.
        """
        kept = self._current(owner, weights, compute, key) if _may_keep() else None
        return None if kept is None else kept.answer

    def of_module(
        self,
        module: nn.Module,
        kinds: Collection[type],
        compute: Callable[[Any], Answer],
        key: Key = lambda: (),
    ) -> Answer | None:
        """Return compute(module) as `of` does, where weights, buffers, key and the classes inside are what they were.

        None also where a module inside is of none of the classes `kinds`, has hooks or a `forward` of its own.
        `compute` is given a twin that holds copies and that nobody else will change.
        """
        if not _may_keep():
            return None  # before the walk: training comes here at every step
        promised = _PROMISED.get().get(module)
        if promised is not None and self in promised:
            return promised[self][0].answer
        weights, buffers, inside = _contents(module)
        if not set(inside).issubset(kinds) or any(type(weight) is not nn.Parameter for weight in weights):
            return None  # tensors put in the place of parameters may carry derivatives
        tensors = [*weights, *buffers]

        def from_copies(copies: Sequence[Tensor]) -> Answer:
            places = map(id, tensors)
            return compute(_twin(module, dict(zip(places, copies, strict=True))))

        kept = self._current(module, tensors, from_copies, lambda: (key(), inside))
        if kept is None:
            return None
        if promised is not None:
            promised[self] = kept, key
        return kept.answer

    def _current(
        self,
        owner: nn.Module,
        weights: Sequence[Tensor],
        compute: Callable[[Sequence[Tensor]], Answer],
        key: Key,
    ) -> _Kept[Answer] | None:
        """Return what is kept, brought up to date."""
        if not _are_plain(weights) or type(weights[0].detach()) is not Tensor:
            return None  # in the last case whatever is computed now holds no numbers
        with self._lock:
            kept = self._kept.get(owner)
        now = key()
        try:
            if kept is not None and kept.is_of(weights, now):
                return kept
            with torch.inference_mode(False), torch.no_grad():  # the answer may outlive an inference mode
                snapshot = _Snapshot.of(weights)
        except RuntimeError:  # a transformation's stand-ins have no memory
            return None
        with torch.inference_mode(False), torch.no_grad():
            kept = _Kept(snapshot, now, compute(snapshot.copies))
        if key() == now:  # what is no tensor is not copied
            with self._lock:
                self._kept[owner] = kept
        return kept


@dataclass(frozen=True, eq=False)
class _Kept(Generic[Answer]):
    """An answer and what it was computed from."""

    snapshot: _Snapshot
    key: object
    answer: Answer

    def is_of(self, weights: Sequence[Tensor], key: object) -> bool:
        """Whether the answer was computed from the same."""
        return self.key == key and self.snapshot.holds(weights)


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


_PROMISED: ContextVar[Mapping[nn.Module, dict[Memo[Any], tuple[_Kept[Any], Key]]]] = ContextVar(
    "promised", default=MappingProxyType({})
)
"""The models of `frozen` blocks, and what was kept of them inside."""


def _may_keep() -> bool:
    """Whether no derivative may be wanted and PyTorch does not trace."""
    tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    return not torch.is_grad_enabled() and not tracing


def _are_plain(weights: Sequence[Tensor]) -> bool:
    """Whether there are tensors and all are numbers side by side in the processor's memory, none a stand-in."""
    return len(weights) > 0 and all(
        type(weight) in (nn.Parameter, Tensor) and weight.is_cpu and weight.is_contiguous() for weight in weights
    )


def _contents(module: nn.Module) -> tuple[list[Tensor], list[Tensor], list[type]]:
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
