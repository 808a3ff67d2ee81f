"""The lemmas as numbers."""

from __future__ import annotations

from dataclasses import dataclass

from splitrelay.theory.problem import Problem, Values


@dataclass(frozen=True)
class Lemma:
    """One lemma's value for a problem: its group, its name, the formula in ASCII, the value."""

    group: str
    name: str
    formula: str
    value: Values


def lemmas(
    problem: Problem,
    *,
    eta_tilde: Values,
    r2: Values | None = None,
    DF: Values | None = None,
    G2: Values | None = None,
    E: Values | None = None,
) -> tuple[Lemma, ...]:
    """Every lemma that the given quantities allow."""
    raise NotImplementedError
