"""What the tests of the fast engine share. Where the kernels are not built there is nothing to ask them."""

from splitrelay.kernels import missing

collect_ignore_glob = [] if missing() is None else ["test_*.py"]
