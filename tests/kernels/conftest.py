"""What the tests of the fast engine share. Where the kernels are not built there is nothing to ask them."""

from splitrelay.kernels import find_obstacle

collect_ignore_glob = [] if find_obstacle() is None else ["test_*.py"]
