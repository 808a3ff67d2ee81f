"""The theory held against exact expectations on random noisy quadratics."""

from splitrelay.experiments.check.statements import Row, check, table

__all__ = ["Row", "check", "table"]
