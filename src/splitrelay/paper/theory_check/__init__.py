"""Checks of the theory against exact expectations on random noisy quadratics."""

from splitrelay.paper.theory_check.runner import Row, run_checks, summarize

__all__ = ["Row", "run_checks", "summarize"]
