"""The fast engine for small nets: compiled kernels without torch, with the same results for whole and cut models."""

from splitrelay.kernels.batches import Draw, draw_clients
from splitrelay.kernels.engine import SplitEngine, WholeEngine, find_layer_for_torch
from splitrelay.kernels.evaluator import ImageEvaluator
from splitrelay.kernels.from_torch import NotCovered, convert_net, find_uncovered
from splitrelay.kernels.library import find_obstacle, get_cpu_level
from splitrelay.kernels.network_plan import Plan, plan_from, read_plan

__all__ = [
    "Draw",
    "ImageEvaluator",
    "NotCovered",
    "Plan",
    "SplitEngine",
    "WholeEngine",
    "convert_net",
    "draw_clients",
    "find_layer_for_torch",
    "find_obstacle",
    "find_uncovered",
    "get_cpu_level",
    "plan_from",
    "read_plan",
]
