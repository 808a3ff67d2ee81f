"""Many runs: every combination of given values, on the cores of this machine or on a Ray cluster."""
