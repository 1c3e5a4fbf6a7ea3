"""Learn a convex objective from data and decide with it.

Input-convex networks with quadratic and conic branches (SOC-ICNN), which are exact SOCP value functions; a
common interface for them and their rivals; decisions with a certified optimality gap.
"""

from soctk import losses
from soctk.decide.certificate import Certificate, certify
from soctk.decide.decision import Decision, Status
from soctk.decide.external import External
from soctk.decide.first_order import FirstOrder
from soctk.decide.layer import DecisionLayer
from soctk.decide.minimize import minimize
from soctk.decide.newton import SmoothingNewton
from soctk.decide.newton_cg import NewtonCG
from soctk.decide.prepare import prepare
from soctk.decide.protocol import PaperProtocol
from soctk.decide.warmup import warmup
from soctk.exports.embedding import Embedding
from soctk.exports.onnx import to_onnx
from soctk.exports.pieces import affine_pieces
from soctk.forms.cone_program import ConeProgram, ConeSolution
from soctk.forms.conic_form import ConicForm
from soctk.function import ConvexFunction
from soctk.imports.exact import from_max_affine, from_quadratic, tangent_planes
from soctk.imports.expression import from_cvxpy
from soctk.io.checkpoint import CheckpointError, load, save
from soctk.learn.config import FitConfig
from soctk.learn.data import ValueData
from soctk.learn.fit import fit
from soctk.learn.report import FitReport
from soctk.models.conv import ConvSOCICNN
from soctk.models.dense import SOCICNN, NormICNN, QuadICNN, ReLUICNN, SoftplusICNN
from soctk.models.exact import ExactSurrogate
from soctk.models.frozen import freeze
from soctk.models.recurrent import RecurrentSOCICNN
from soctk.registry import make_surrogate, register_surrogate_class, surrogate_names
from soctk.sets import Box, Budget, FeasibleSet, Polyhedron, Simplex
from soctk.surrogate import ConvexSurrogate
from soctk.terms.base import Dual

__version__ = "0.1.0"

__all__ = [
    "SOCICNN",
    "Box",
    "Budget",
    "Certificate",
    "CheckpointError",
    "ConeProgram",
    "ConeSolution",
    "ConicForm",
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
    "FirstOrder",
    "FitConfig",
    "FitReport",
    "NewtonCG",
    "NormICNN",
    "PaperProtocol",
    "Polyhedron",
    "QuadICNN",
    "ReLUICNN",
    "RecurrentSOCICNN",
    "Simplex",
    "SmoothingNewton",
    "SoftplusICNN",
    "Status",
    "ValueData",
    "affine_pieces",
    "certify",
    "fit",
    "freeze",
    "from_cvxpy",
    "from_max_affine",
    "from_quadratic",
    "load",
    "losses",
    "make_surrogate",
    "minimize",
    "prepare",
    "register_surrogate_class",
    "save",
    "surrogate_names",
    "tangent_planes",
    "to_onnx",
    "warmup",
]
