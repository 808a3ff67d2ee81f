"""The words of the theory's figures: symbols, numbers and captions in TeX."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from splitrelay.notation import SYMBOLS
from splitrelay.notation import get_axis_label as symbol

MEASURE = {
    "E F(xbar) - F*": r"$\mathbb{E}\,F(\bar{x})-F^*$",
    "min_r E||grad F(x^r)||^2": r"$\min_r\,\mathbb{E}\,\|\nabla F(x^r)\|^2$",
    "E||x^R - x*||^2": r"$\mathbb{E}\,\|x^R-x^*\|^2$",
}
SQUARES = {
    "sigma2": r"$\sigma^2$",
    "sigma2_star": r"$\sigma_*^2$",
    "zeta2_star": r"$\zeta_*^2$",
    "B2": "$B^2$",
}
LETTERS_PER_INCH = 18  # of 8 point STIX


@dataclass(frozen=True)
class Words:
    """What a figure says: its headline, what is fixed, what stands on x, what is measured."""

    headline: str
    fixed: Mapping[str, Any]
    x: str
    measure: str
    case: str
    kind: str = "bound on"

    @property
    def x_label(self) -> str:
        """The paper's symbol, and its unit where it has one."""
        unit = next((found.unit for found in SYMBOLS if found.name == self.x), "")
        return self.symbol(self.x) + (f" ({unit})" if unit else "")

    @property
    def y_label(self) -> str:
        """What the total is a bound on, or an order of."""
        return f"{self.kind}\n{MEASURE.get(self.measure, self.measure)}"

    def symbol(self, name: str) -> str:
        """A quantity's symbol; zeta2 is zeta_*^2 in the convex cases."""
        if name == "zeta2":
            return r"$\zeta^2$" if self.case == "non-convex" else r"$\zeta_*^2$"
        return SQUARES.get(name) or symbol(name)

    def setting(self, name: str, value: Any) -> str:
        """A quantity and its value."""
        return f"{self.symbol(name).rstrip('$')}={number(value)}$"

    def caption(self, width: float) -> str:
        """The headline, and below it what is fixed, in lines that fit into so many inches."""
        room = int(width * LETTERS_PER_INCH)
        lines = textwrap.wrap(self.headline, room)
        settings = [self.setting(name, value) for name, value in self.fixed.items()]
        while settings:
            fitting = max(1, sum(_letters(settings[: n + 1]) <= room for n in range(len(settings))))
            lines.append(", ".join(settings[:fitting]))
            settings = settings[fitting:]
        return "\n".join(lines)


def number(value: Any) -> str:
    """Four digits; powers of ten as such where they are long."""
    text = f"{value:.4g}"
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text
    power = f"10^{{{int(exponent)}}}"
    return power if mantissa == "1" else rf"{mantissa}\times {power}"


def _letters(settings: Sequence[str]) -> int:
    """About how wide pieces of TeX are set side by side."""
    return len(", ".join(re.sub(r"[$^_{}]|\\tilde|(?<=\\)[a-z]+", "", piece) for piece in settings))
