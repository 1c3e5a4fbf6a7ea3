"""The convex terms that a conic form is a sum of: phi(A x + d), each with its dual, smoothing and CVXPY form."""

from soctk.terms.base import Recognised, Smoothed, Term
from soctk.terms.huber import Huber
from soctk.terms.log_sum_exp import LogSumExp
from soctk.terms.logistic import Logistic
from soctk.terms.network import Network
from soctk.terms.norm import Norms
from soctk.terms.quadratic import Quadratic
from soctk.terms.registry import SlowTermWarning, register, registered

__all__ = [
    "Huber",
    "LogSumExp",
    "Logistic",
    "Network",
    "Norms",
    "Quadratic",
    "Recognised",
    "SlowTermWarning",
    "Smoothed",
    "Term",
    "register",
    "registered",
]
