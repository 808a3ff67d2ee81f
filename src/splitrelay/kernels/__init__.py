"""The fast engine for small nets: the reference engine's promise, kept by compiled kernels, without torch."""

from splitrelay.kernels.engine import InTwo, Whole
from splitrelay.kernels.layers import NotCovered, plan_of, why_not
from splitrelay.kernels.library import level, missing
from splitrelay.kernels.orders import shuffled
from splitrelay.kernels.plan import Plan, plan_from, read_plan
from splitrelay.kernels.samples import Draw
from splitrelay.kernels.scoring import Scorer

__all__ = [
    "Draw",
    "InTwo",
    "NotCovered",
    "Plan",
    "Scorer",
    "Whole",
    "level",
    "missing",
    "plan_from",
    "plan_of",
    "read_plan",
    "shuffled",
    "why_not",
]
