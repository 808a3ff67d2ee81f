"""The docstring's worked average, and one golden run seen through the public names."""

from fractions import Fraction as Q

from splitrelay.algorithms import SSL, Averaged, Step
from splitrelay.engine import InProcess
from splitrelay.objectives.quadratic import ScalarQuadratics


class Counting:
    """Models 0, 1, 2, ..."""

    def init(self, x0):
        return x0

    def round(self, r, x, order, clients):
        return x + 1

    def model(self, x):
        return x


def test_weights_two_four_eight() -> None:
    averaged = Averaged(Counting(), decay=Q(1, 2))
    state = averaged.init(Q(0))
    rhos, means = [state.rho], [state.x_bar]
    for r in range(2):
        state = averaged.round(r, state, (), None)
        rhos.append(state.rho)
        means.append(state.x_bar)
    assert rhos == [1, Q(3, 2), Q(7, 4)]
    assert means == [0, Q(2, 3), Q(10, 7)]


def test_every_local_iterate_of_the_docstring() -> None:
    clients = InProcess(ScalarQuadratics((1, 1), (1, -1)))
    ends = [SSL(Step(Q(1, 2)), K=K).round(0, Q(2), order, clients) for order, K in [((0,), 1), ((0,), 2), ((0, 1), 2)]]
    assert ends == [Q(1, 2), Q(-1, 4), Q(11, 16)]
