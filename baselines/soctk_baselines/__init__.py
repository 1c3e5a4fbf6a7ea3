"""Rivals of the SOC-ICNN behind the same interface, and the trivial decisions every method must beat."""

from soctk_baselines.cvxpy_layer import CvxpyLayerDecider, CvxpyLayers
from soctk_baselines.dcp import DCP
from soctk_baselines.ickan import ICKAN
from soctk_baselines.pcf import PCF
from soctk_baselines.pcf_template import PCFTemplate
from soctk_baselines.policies import AffinePolicy, ConstantDecision
from soctk_baselines.quadratic import QuadraticRegression

__all__ = [
    "DCP",
    "ICKAN",
    "PCF",
    "AffinePolicy",
    "ConstantDecision",
    "CvxpyLayerDecider",
    "CvxpyLayers",
    "PCFTemplate",
    "QuadraticRegression",
]
