"""The theory held against exact expectations on random noisy quadratics."""

from splitrelay.paper.theory_check.runner import Row, check, table

__all__ = ["Row", "check", "table"]
