"""The terms by name: those of this library, and others that are registered.

A term of one's own needs no registration to be decided with. It does to be loaded from a file and to be found in a
CVXPY expression: by `register`, or by an entry point of a package in the group `soctk.terms`, which has the name of the
class.
"""

from __future__ import annotations

import threading
import warnings
from typing import TypeVar

from soctk.plugins import PluginError, broken, find_plugin, load_plugin, plugin_names
from soctk.terms.base import Term
from soctk.terms.huber import Huber
from soctk.terms.log_sum_exp import LogSumExp
from soctk.terms.logistic import Logistic
from soctk.terms.network import Network
from soctk.terms.norm import Norms
from soctk.terms.quadratic import Quadratic

GROUP = "soctk.terms"
BUILT_IN: tuple[type[Term], ...] = (Quadratic, Norms, Network, Logistic, LogSumExp, Huber)
_registered: dict[str, type[Term]] = {kind.__name__: kind for kind in BUILT_IN}
_slow: set[type[Term]] = set()
_thread = threading.local()
"""What this thread imports: packages may ask for what is registered while they are imported."""
_failed: set[str] = set()
"""Names that were left out, with a warning."""
TermClass = TypeVar("TermClass", bound=type[Term])


class SlowTermWarning(UserWarning):
    """A term without a kernel is decided in PyTorch, which takes several times as long."""


def register(kind: TermClass) -> TermClass:
    """Make a class of terms known by its name; usable as a decorator.

    Raises:
        TypeError: it is no class of terms.
        ValueError: another class has the name.
    """
    if not (isinstance(kind, type) and issubclass(kind, Term)):
        raise TypeError(f"expected a class that derives from soctk.terms.Term, got {kind!r}")
    other = _registered.setdefault(kind.__name__, kind)
    if other is not kind and other.__module__ != kind.__module__:
        raise ValueError(f"the name {kind.__name__} is taken by {other.__module__}; choose another")
    _registered[kind.__name__] = kind
    return kind


def registered() -> dict[str, type[Term]]:
    """Return the classes of terms by name, those of installed packages too.

    Packages' that cannot be used are left out with a warning.
    """
    for name in () if _loading() else plugin_names(GROUP):
        if name in _registered or name in _failed:
            continue
        try:
            term_class(name)
        except (PluginError, TypeError, ValueError) as error:
            _failed.add(name)
            warnings.warn(f"a term is left out: {error}", stacklevel=2)
    return dict(_registered)


def term_class(name: str) -> type[Term]:
    """Return the class of terms of a name, which is the class's own.

    Raises:
        ValueError: there is none, or two packages claim it.
        PluginError: the package that adds it cannot be imported, or adds something else.
    """
    loading = _loading()
    if name not in _registered and name not in loading and name in plugin_names(GROUP):
        loading.add(name)
        try:
            entry = find_plugin(GROUP, name)
            kind = load_plugin(entry)
            if getattr(kind, "__name__", None) != name:
                raise broken(entry, f"is not called as the class: {kind!r}")
            register(kind)
        finally:
            loading.discard(name)
    if name not in _registered:
        raise ValueError(
            f"expected a registered term ({', '.join(_registered)}), got {name!r}; see soctk.terms.register"
        )
    return _registered[name]


def _loading() -> set[str]:
    """Return the names that this thread is importing."""
    return _thread.__dict__.setdefault("names", set())


def term_name(kind: type[Term]) -> str:
    """Return the name under which a class is registered.

    Raises:
        ValueError: it is not.
    """
    if term_class(kind.__name__) is not kind:
        raise ValueError(f"the name {kind.__name__} is that of another class of terms; choose another")
    return kind.__name__


def has_kernel(kind: type[Term]) -> bool:
    """Whether a class has a kernel of its own: one that is inherited may not be that of what the class computes."""
    return vars(kind).get("kernel") is not None


def warn_slow(kind: type[Term]) -> None:
    """Warn, once for each class, that its terms are decided in PyTorch."""
    if kind not in _slow:
        _slow.add(kind)
        warnings.warn(
            f"{kind.__name__} has no compiled kernel, so forms with it are decided in PyTorch, several times slower; "
            "set `kernel` in the class (see soctk.terms.kernel)",
            SlowTermWarning,
            stacklevel=2,
        )
