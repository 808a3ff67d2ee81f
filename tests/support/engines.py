"""Both engines under one name each, for laws that hold on either; the fast one where it is built."""

from splitrelay.engine.select import Fast
from splitrelay.engine.torch_engine import InTwo, Whole
from splitrelay.kernels import missing
from splitrelay.objectives.network import Network

ENGINES = ["reference", "fast"] if missing() is None else ["reference"]


class FastInTwo(Fast):
    """With the one number that peers ask an engine for."""

    @property
    def boundary(self) -> int:
        return self.inner.boundary


def whole(engine: str, net: Network, seed: int = 5) -> Whole | Fast:
    return Whole(net, seed) if engine == "reference" else Fast(net, seed, "whole")


def in_two(engine: str, net: Network, seed: int = 5, cut: str | int | None = None) -> InTwo | FastInTwo:
    return InTwo(net, seed, cut) if engine == "reference" else FastInTwo(net, seed, "cut", cut)
