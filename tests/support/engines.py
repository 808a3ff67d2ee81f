"""Both engines under one name each, for laws that hold on either; the fast one where it is built."""

from splitrelay.engine.select import FastEngine
from splitrelay.engine.torch_engine import SplitEngine, WholeEngine
from splitrelay.kernels import find_obstacle
from splitrelay.objectives.network import Network

ENGINES = ["reference", "fast"] if find_obstacle() is None else ["reference"]


def whole(engine: str, net: Network, seed: int = 5) -> WholeEngine | FastEngine:
    return WholeEngine(net, seed) if engine == "reference" else FastEngine(net, seed, "whole")


def in_two(engine: str, net: Network, seed: int = 5, cut: str | int | None = None) -> SplitEngine | FastEngine:
    return SplitEngine(net, seed, cut) if engine == "reference" else FastEngine(net, seed, "cut", cut)
