"""Learn a convex objective from data and decide with it.

Input-convex networks with quadratic and conic branches (SOC-ICNN), which are exact SOCP value functions; a
common interface for them and their rivals; decisions with a certified optimality gap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from soctk import losses
    from soctk.assessment.assess import assess
    from soctk.assessment.assessment import Assessment, Verdict
    from soctk.decide.certificate import Certificate, certify
    from soctk.decide.decision import Decision, Status
    from soctk.decide.external import External
    from soctk.decide.first_order import FirstOrder
    from soctk.decide.layer import DecisionLayer, UncertifiedWarning
    from soctk.decide.minimize import minimize
    from soctk.decide.newton import SmoothingNewton
    from soctk.decide.newton_cg import NewtonCG
    from soctk.decide.prepare import prepare
    from soctk.decide.protocol import PaperProtocol
    from soctk.decide.warmup import warmup
    from soctk.exports.embedding import Embedding
    from soctk.exports.onnx import to_onnx
    from soctk.exports.pieces import affine_pieces
    from soctk.exports.runtime import to_runtime
    from soctk.forms.cone_program import ConeProgram, ConeSolution
    from soctk.forms.conic_form import ConicForm
    from soctk.function import ConvexFunction
    from soctk.imports.exact import from_max_affine, from_quadratic, tangent_planes
    from soctk.imports.expression import from_cvxpy
    from soctk.imports.layers import ImportedICNN, from_layers
    from soctk.io.checkpoint import CheckpointError, load, save
    from soctk.learn.config import FitConfig
    from soctk.learn.data import ValueData
    from soctk.learn.decision_losses import Optimality, Regret, SPOPlus, Suboptimality
    from soctk.learn.fine_tune import FineTuneReport, fine_tune
    from soctk.learn.fit import fit
    from soctk.learn.report import FitReport
    from soctk.models.average import AverageSurrogate, average
    from soctk.models.conv import ConvSOCICNN
    from soctk.models.dense import SOCICNN
    from soctk.models.exact import ExactSurrogate
    from soctk.models.family import NormICNN, QuadICNN, ReLUICNN, SoftplusICNN
    from soctk.models.frozen import freeze
    from soctk.models.recurrent import RecurrentSOCICNN
    from soctk.registry import make_surrogate, register_surrogate_class, surrogate_names
    from soctk.sets import Box, Budget, ConicSet, FeasibleSet, Polyhedron, Simplex
    from soctk.surrogate import ConvexSurrogate
    from soctk.tables.columns import Columns
    from soctk.tables.errors import TableError
    from soctk.tables.log import Log, Roles, read_log
    from soctk.terms.base import Dual

__version__ = "0.2.0"

__all__ = [
    "SOCICNN",
    "Assessment",
    "AverageSurrogate",
    "Box",
    "Budget",
    "Certificate",
    "CheckpointError",
    "Columns",
    "ConeProgram",
    "ConeSolution",
    "ConicForm",
    "ConicSet",
    "ConvSOCICNN",
    "ConvexFunction",
    "ConvexSurrogate",
    "Decision",
    "DecisionLayer",
    "Dual",
    "Embedding",
    "ExactSurrogate",
    "External",
    "FeasibleSet",
    "FineTuneReport",
    "FirstOrder",
    "FitConfig",
    "FitReport",
    "ImportedICNN",
    "Log",
    "NewtonCG",
    "NormICNN",
    "Optimality",
    "PaperProtocol",
    "Polyhedron",
    "QuadICNN",
    "ReLUICNN",
    "RecurrentSOCICNN",
    "Regret",
    "Roles",
    "SPOPlus",
    "Simplex",
    "SmoothingNewton",
    "SoftplusICNN",
    "Status",
    "Suboptimality",
    "TableError",
    "UncertifiedWarning",
    "ValueData",
    "Verdict",
    "affine_pieces",
    "assess",
    "average",
    "certify",
    "fine_tune",
    "fit",
    "freeze",
    "from_cvxpy",
    "from_layers",
    "from_max_affine",
    "from_quadratic",
    "load",
    "losses",
    "make_surrogate",
    "minimize",
    "prepare",
    "read_log",
    "register_surrogate_class",
    "save",
    "surrogate_names",
    "tangent_planes",
    "to_onnx",
    "to_runtime",
    "warmup",
]

_NAMES = {
    "assessment.assess": "assess",
    "assessment.assessment": "Assessment Verdict",
    "decide.certificate": "Certificate certify",
    "decide.decision": "Decision Status",
    "decide.external": "External",
    "decide.first_order": "FirstOrder",
    "decide.layer": "DecisionLayer UncertifiedWarning",
    "decide.minimize": "minimize",
    "decide.newton": "SmoothingNewton",
    "decide.newton_cg": "NewtonCG",
    "decide.prepare": "prepare",
    "decide.protocol": "PaperProtocol",
    "decide.warmup": "warmup",
    "exports.embedding": "Embedding",
    "exports.onnx": "to_onnx",
    "exports.pieces": "affine_pieces",
    "exports.runtime": "to_runtime",
    "forms.cone_program": "ConeProgram ConeSolution",
    "forms.conic_form": "ConicForm",
    "function": "ConvexFunction",
    "imports.exact": "from_max_affine from_quadratic tangent_planes",
    "imports.expression": "from_cvxpy",
    "imports.layers": "ImportedICNN from_layers",
    "io.checkpoint": "CheckpointError load save",
    "learn.config": "FitConfig",
    "learn.data": "ValueData",
    "learn.decision_losses": "Optimality Regret SPOPlus Suboptimality",
    "learn.fine_tune": "FineTuneReport fine_tune",
    "learn.fit": "fit",
    "learn.report": "FitReport",
    "models.average": "AverageSurrogate average",
    "models.conv": "ConvSOCICNN",
    "models.dense": "SOCICNN",
    "models.family": "NormICNN QuadICNN ReLUICNN SoftplusICNN",
    "models.exact": "ExactSurrogate",
    "models.frozen": "freeze",
    "models.recurrent": "RecurrentSOCICNN",
    "registry": "make_surrogate register_surrogate_class surrogate_names",
    "sets": "Box Budget ConicSet FeasibleSet Polyhedron Simplex",
    "surrogate": "ConvexSurrogate",
    "tables.columns": "Columns",
    "tables.errors": "TableError",
    "tables.log": "Log Roles read_log",
    "terms.base": "Dual",
}
"""The public names of each module. They are loaded when they are first used: torch alone takes seconds."""

_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Return a public name, or one of the modules."""
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    else:
        try:
            value = import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*globals(), *__all__})
