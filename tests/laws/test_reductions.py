"""When one algorithm is a special case of another, both give the same bits."""

from fractions import Fraction as Q
from typing import Any

import numpy as np
import pytest

from splitrelay.algorithms import (
    SFLG,
    SSL,
    Averaged,
    FedAvg,
    FedSeq,
    MinibatchSGD,
    RandomReshuffling,
    Scaffold,
    SplitFedV2,
    SplitFedV3,
    Step,
)
from splitrelay.engine import Flaky, InProcess
from splitrelay.objectives.quadratic import ScalarQuadratics
from splitrelay.participation import Fixed, Permutation, Sampled, WithReplacement
from splitrelay.randomness import Purpose, rng
from splitrelay.testing import Pair, PairCut, PairQuadratics
from splitrelay.training import resume, train

H, A = (Q(1), Q(2), Q(1, 2)), (Q(1), Q(-3), Q(2))
EXACT = ScalarQuadratics(H, A)
STEP = Step(eta=Q(1, 7))
NOISY = ScalarQuadratics(np.array([1.0, 2.0, 0.5]), np.array([1.0, -3.0, 2.0]), sigma2=0.3)


def last(algorithm: Any, order: Any, clients: Any, R: int = 4, x0: Any = Q(5)) -> Any:
    *_, (_, state) = train(algorithm, x0, order, clients, R=R)
    return algorithm.model(state)


def gradient(m: int, x: Any) -> Any:
    return H[m] * x + A[m]


def test_ssl_with_one_client_is_sgd() -> None:
    alone = ScalarQuadratics(np.array([2.0]), np.array([1.0]), sigma2=1.0)
    clients, x = InProcess(alone, seed=4), np.float64(5.0)
    for r in range(4):
        for xi in clients.objective.draw(0, 3, lambda r=r: _named(4, r)):
            x = x - 0.1 * alone.gradient(0, x, xi)
    assert last(SSL(Step(0.1), K=3), Fixed([0]), clients, x0=np.float64(5.0)) == x


def _named(seed: int, r: int) -> np.random.Generator:
    return rng(seed, Purpose.BATCHES, r, 0, 0)


def test_ssl_with_one_full_gradient_step_is_random_reshuffling() -> None:
    order, x = Permutation(3, seed=1), Q(5)
    for r in range(4):
        for m in order(r):
            x = x - Q(1, 7) * gradient(m, x)
    assert last(SSL(STEP, K=1), order, InProcess(EXACT)) == x
    assert last(RandomReshuffling(STEP), order, InProcess(EXACT)) == x


def test_fedavg_with_one_full_gradient_step_is_gradient_descent() -> None:
    x = Q(5)
    for _ in range(4):
        x = x - Q(1, 7) * sum(gradient(m, x) for m in range(3)) / 3
    assert last(FedAvg(STEP, K=1), Fixed([0, 1, 2]), InProcess(EXACT)) == x


def test_fedavg_with_one_step_is_minibatch_sgd_with_one_gradient_a_client() -> None:
    runs = [last(alg, Permutation(3, 2), InProcess(NOISY, seed=9), x0=np.float64(5)) for alg in
            (FedAvg(Step(0.1), K=1), MinibatchSGD(Step(0.1), K=1))]  # fmt: skip
    assert runs[0] == runs[1]


def test_minibatch_sgd_takes_the_mean_of_all_gradients_at_one_point() -> None:
    x = Q(5) - Q(1, 7) * sum(gradient(m, Q(5)) for m in range(3)) / 3
    assert last(MinibatchSGD(STEP, K=5), Fixed([0, 1, 2]), InProcess(EXACT), R=1) == x


def test_scaffold_with_zero_variates_is_fedavg() -> None:
    scaffold, fedavg, clients = Scaffold(STEP, K=3, M=3), FedAvg(STEP, K=3), InProcess(EXACT)
    x = Q(5)
    for r in range(3):
        fresh = scaffold.init(x)  # all variates zero again
        x_next = scaffold.model(scaffold.round(r, fresh, (0, 1, 2), clients))
        assert x_next == fedavg.round(r, x, (0, 1, 2), clients)
        x = x_next


def test_scaffold_stays_at_the_optimum_once_its_variates_are_there() -> None:
    x_star = -sum(A) / sum(H)
    scaffold, clients = Scaffold(STEP, K=4, M=3), InProcess(EXACT)
    state = type(scaffold.init(x_star))(x_star, Q(0), {m: gradient(m, x_star) for m in range(3)})
    assert scaffold.round(0, state, (0, 1, 2), clients) == state


def test_scaffolds_c_is_the_mean_of_all_variates_even_when_a_client_comes_twice() -> None:
    scaffold, clients = Scaffold(STEP, K=2, M=3), InProcess(EXACT)
    state = scaffold.init(Q(5))
    for r in range(4):
        state = scaffold.round(r, state, WithReplacement(3, 2, seed=5)(r), clients)
    assert state.c == sum(state.variates.values()) / 3


@pytest.mark.parametrize("K", [1, 3])
def test_equal_clients_make_ssl_m_times_k_gradient_steps_a_round_and_fedavg_k(K: int) -> None:
    clients, eta, M = InProcess(ScalarQuadratics((Q(2),) * 3, (Q(1),) * 3)), Q(1, 7), 3
    descend = lambda x, steps: x if steps == 0 else descend(x - eta * (2 * x + 1), steps - 1)  # noqa: E731
    assert last(SSL(STEP, K), Permutation(M, 0), clients, R=2) == descend(Q(5), 2 * M * K)
    assert last(FedAvg(STEP, K), Permutation(M, 0), clients, R=2) == descend(Q(5), 2 * K)


def test_fedseq_with_one_group_is_ssl_and_with_one_client_a_group_is_fedavg() -> None:
    order, clients = Permutation(3, 3), InProcess(NOISY, seed=2)
    x0 = np.float64(5)
    assert last(FedSeq(Step(0.1), 2, G=1), order, clients, x0=x0) == last(SSL(Step(0.1), 2), order, clients, x0=x0)
    assert last(FedSeq(Step(0.1), 2, G=3), order, clients, x0=x0) == last(FedAvg(Step(0.1), 2), order, clients, x0=x0)


def test_sflg_with_one_group_is_splitfed_v2_and_with_one_client_a_group_is_fedavg() -> None:
    clients, x = InProcess(PairQuadratics(H, A)), Pair(Q(5), Q(-2))
    one = SFLG(STEP, 2, PairCut(), G=1).round(0, x, (2, 0, 1), clients)
    assert one == SplitFedV2(STEP, 2, PairCut()).round(0, x, (2, 0, 1), clients)
    assert one != FedAvg(STEP, 2).round(0, x, (2, 0, 1), clients)
    each = SFLG(STEP, 2, PairCut(), G=3).round(0, x, (2, 0, 1), clients)
    assert each == FedAvg(STEP, 2).round(0, x, (2, 0, 1), clients)


def test_with_one_client_all_of_the_family_are_sgd() -> None:
    clients, x, cut = InProcess(PairQuadratics(H[:1], A[:1])), Pair(Q(5), Q(-2)), PairCut()
    family = (
        SSL(STEP, 3),
        FedAvg(STEP, 3),
        SplitFedV2(STEP, 3, cut),
        SplitFedV3(STEP, 3, cut),
        SFLG(STEP, 3, cut, G=1),
    )
    ends = [last(algorithm, Fixed([0]), clients, x0=x) for algorithm in family]
    assert all(end == ends[0] for end in ends)


def test_splitfed_v3_keeps_every_clients_own_half() -> None:
    clients, v3 = InProcess(PairQuadratics(H, A)), SplitFedV3(STEP, 2, PairCut())
    state = v3.round(0, v3.init(Pair(Q(5), Q(-2))), (0, 2), clients)
    assert sorted(state.bottoms) == [0, 2] and state.bottoms[0] != state.bottoms[2]
    assert v3.own_model(state, 1).bottom == Q(5) and v3.own_model(state, 1).top == v3.model(state).top


def test_fedavg_over_everyone_does_not_depend_on_the_order() -> None:
    results = {last(FedAvg(STEP, 2), Fixed(order), InProcess(EXACT)) for order in [(0, 1, 2), (2, 0, 1)]}
    assert len(results) == 1


def test_a_client_drawn_twice_trains_twice_on_other_batches() -> None:
    clients, fedavg = InProcess(NOISY, seed=3), FedAvg(Step(0.1), K=2)
    twice = fedavg.round(0, np.float64(1), (1, 1), clients)
    once = fedavg.round(0, np.float64(1), (1,), clients)
    assert twice != once


def test_equal_sizes_weigh_nothing_and_a_size_of_two_counts_twice() -> None:
    clients = InProcess(EXACT)
    plain = FedAvg(STEP, 2).round(0, Q(5), (0, 1, 2), clients)
    assert FedAvg(STEP, 2, sizes=(4, 4, 4)).round(0, Q(5), (0, 1, 2), clients) == plain
    doubled = FedAvg(STEP, 2).round(0, Q(5), (0, 0, 1), clients)
    assert FedAvg(STEP, 2, sizes=(2, 1, 9)).round(0, Q(5), (0, 1), clients) == doubled


def test_skipped_clients_pass_x_on_in_ssl_and_stay_out_of_the_mean_in_fedavg() -> None:
    flaky = Flaky(InProcess(EXACT), lambda visit: visit.m == 1)
    for algorithm in (SSL(STEP, 2), FedAvg(STEP, 2)):
        assert algorithm.round(0, Q(5), (0, 1, 2), flaky) == algorithm.round(0, Q(5), (0, 2), InProcess(EXACT))


def test_own_local_steps_per_client() -> None:
    one_each = SSL(STEP, K=(1, 3, 2)).round(0, Q(5), (1,), InProcess(EXACT))
    assert one_each == SSL(STEP, K=3).round(0, Q(5), (1,), InProcess(EXACT))


def test_the_averaged_output_is_the_weighted_mean_of_all_models() -> None:
    decay, algorithm, clients = Q(1, 5), SSL(STEP, 2), InProcess(EXACT)
    models = [x for _, x in train(algorithm, Q(5), Permutation(3, 1), clients, R=6)]
    weights = [(1 - decay) ** -(r + 1) for r in range(7)]
    expected = sum(w * x for w, x in zip(weights, models, strict=True)) / sum(weights)
    assert last(Averaged(algorithm, decay), Permutation(3, 1), clients, R=6) == expected


def test_the_averaged_output_does_not_overflow() -> None:
    averaged, clients = Averaged(SSL(Step(0.1), 1), decay=0.5), InProcess(ScalarQuadratics((1.0,), (0.0,)))
    state = averaged.init(1.0)
    for r in range(3000):  # w_r = 2^(r+1) overflows at r = 1023
        state = averaged.round(r, state, (0,), clients)
    assert state.rho == 2.0


def test_looking_changes_nothing() -> None:
    algorithm, order = Scaffold(Step(0.1), 2, M=3), Sampled(3, 2, seed=4)
    unseen = last(algorithm, order, InProcess(NOISY, 1), R=6, x0=np.float64(5))
    for _, state in train(algorithm, np.float64(5), order, InProcess(NOISY, 1), R=6):
        for m in range(3):
            NOISY.gradient(m, algorithm.model(state), None)
    assert algorithm.model(state) == unseen


@pytest.mark.parametrize("start", range(6))
def test_resumed_is_uninterrupted(start: int) -> None:
    algorithm, order, clients = Averaged(Scaffold(Step(0.1), 2, M=3), 0.1), Sampled(3, 2, seed=4), InProcess(NOISY, 1)
    states = dict(train(algorithm, np.float64(5), order, clients, R=6))
    *_, (_, resumed) = resume(algorithm, start, states[start], order, InProcess(NOISY, 1), R=6)
    assert resumed == states[6]
