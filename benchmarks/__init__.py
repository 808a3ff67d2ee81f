"""Speed as ratios: ours against a baseline measured in the same run. `python -m benchmarks` at the root."""
