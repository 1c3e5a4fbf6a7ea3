"""The convex terms that a conic form is a sum of: phi(A x + d), each with its dual, smoothing and CVXPY form."""

from soctk.terms.base import Smoothed, Term
from soctk.terms.network import Network
from soctk.terms.norm import Norms
from soctk.terms.quadratic import Quadratic
from soctk.terms.smooth import Huber, Logistic, LogSumExp

__all__ = ["Huber", "LogSumExp", "Logistic", "Network", "Norms", "Quadratic", "Smoothed", "Term"]
