"""Runs: from a spec to a run directory, and back from its records."""
