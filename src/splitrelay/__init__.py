"""Splitrelay: sequential split learning, from its theory to its runs."""

__version__ = "0.1.0"
