"""A calculator for the paper's theory. Every quantity and every result is a number or an array.

>>> from splitrelay.theory import Problem, bound
>>> problem = Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, R=100, D2=1)
>>> round(bound("ssl", "strongly-convex", problem, eta_tilde=1 / 12).total, 6)
0.028592
"""

from splitrelay.theory.averaging_weights import Weights, thetas, weights
from splitrelay.theory.bounds import applicability, bound, last_iterate
from splitrelay.theory.comparison import Crossing, compare, find_crossings, useful_local_steps
from splitrelay.theory.errata import ERRATA, Erratum, erratum
from splitrelay.theory.lemmas import Lemma, lemmas
from splitrelay.theory.problem import MEANING, Problem
from splitrelay.theory.rates import RATES, RoundCount, rate, rounds, table_one
from splitrelay.theory.results import (
    ALGORITHMS,
    CASES,
    CONSTANTS,
    HORIZONS,
    RULES,
    Bound,
    Comparison,
    Condition,
    Labels,
    Rate,
    Side,
    StepSize,
    Truth,
    Values,
)
from splitrelay.theory.stepsizes import stepsize, stepsizes

__all__ = [
    "ALGORITHMS",
    "CASES",
    "CONSTANTS",
    "ERRATA",
    "HORIZONS",
    "MEANING",
    "RATES",
    "RULES",
    "Bound",
    "Comparison",
    "Condition",
    "Crossing",
    "Erratum",
    "Labels",
    "Lemma",
    "Problem",
    "Rate",
    "RoundCount",
    "Side",
    "StepSize",
    "Truth",
    "Values",
    "Weights",
    "applicability",
    "bound",
    "compare",
    "erratum",
    "find_crossings",
    "last_iterate",
    "lemmas",
    "rate",
    "rounds",
    "stepsize",
    "stepsizes",
    "table_one",
    "thetas",
    "useful_local_steps",
    "weights",
]
