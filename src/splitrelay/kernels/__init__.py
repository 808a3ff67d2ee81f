"""The fast engine for small nets: the reference engine's promise, kept by compiled kernels, without torch."""

from splitrelay.kernels.batches import Draw
from splitrelay.kernels.engine import InTwo, Whole
from splitrelay.kernels.evaluator import Scorer
from splitrelay.kernels.from_torch import NotCovered, plan_of, why_not
from splitrelay.kernels.library import level, missing
from splitrelay.kernels.network_plan import Plan, plan_from, read_plan
from splitrelay.kernels.orders import shuffled

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
