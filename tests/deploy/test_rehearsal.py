"""Run server and clients as processes while faults are injected; the weights must be those of the simulation."""

from pathlib import Path

import pytest

from splitrelay.chaos.fault_injection import FaultRehearsal
from splitrelay.chaos.fault_kinds import KINDS, Fault, draw_plan, find_excluded_faults, list_possible_kinds, read_plan
from splitrelay.deploy.rehearsal import RehearsalOptions
from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.participation import Sampled
from tests.support.deployment import small_spec

LIMIT = 600  # seconds: only a rehearsal that hangs takes so long


def ignore(text: str) -> None:
    """Drop a progress message."""


def test_run_with_faults_equals_simulation(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=2", "C=5", "R=4", "K=3", "engine=fast")
    faults = [
        Fault("duplicate", 0, 0, 1),
        Fault("cut", 1, 1, 1),
        Fault("kill-server", 2, 0, 1),
        Fault("full-disk", 3, 1),
        Fault("kill-client", 4, 0, 2),
        Fault("lost-commit", 5, 1),
        Fault("nan", 6, 0, 2),
    ]
    rehearsal = FaultRehearsal(RehearsalOptions(spec, tmp_path / "run", timeout=LIMIT), ignore, faults)
    verdict = rehearsal.run()
    assert rehearsal.compute_findings().is_sound, rehearsal.compute_findings()
    assert verdict.is_same and len(rehearsal.scheduler.injected) == len(faults)
    assert sum(event["event"] == "listening" for event in rehearsal.read_events()) == 3
    assert "cannot write" in (tmp_path / "run" / "rehearsal" / "logs" / "server.log").read_text()


def test_skipped_visits_are_skipped_in_simulation(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=2", "C=5", "K=3", "engine=fast")
    options = RehearsalOptions(spec, tmp_path / "run", timeout=LIMIT, away="skip", lease=0.5)
    rehearsal = FaultRehearsal(options, ignore, [Fault("stay-away", 1, 1)])
    verdict = rehearsal.run()
    assert rehearsal.compute_findings().is_sound, rehearsal.compute_findings()
    assert verdict.skips >= 1 and verdict.weights


def test_run_with_killed_relay_equals_simulation(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=2", "C=5", "R=3", "K=3", "engine=fast", "route=peer-to-peer")
    faults = [Fault("kill-relay", 1, 1), Fault("stop-server", 3, 0, 1), Fault("lost-reply", 4, 0, 1)]
    rehearsal = FaultRehearsal(RehearsalOptions(spec, tmp_path / "run", timeout=LIMIT), ignore, faults)
    verdict = rehearsal.run()
    assert rehearsal.compute_findings().is_sound, rehearsal.compute_findings()
    assert verdict.is_same


def test_half_survives_kill_of_client_that_sent_it(tmp_path: Path) -> None:
    """There are more rounds than faults need: a visit may begin before the ones before it are settled."""
    spec = small_spec(tmp_path, "M=2", "C=5", "R=8", "K=3", "engine=fast", "route=peer-to-peer", "order=fixed")
    faults = [Fault("delay", 0, 0), Fault("kill-giver", 1, 1), Fault("lost-handed", 2, 0), Fault("kill-server", 3, 1)]
    options = RehearsalOptions(spec, tmp_path / "run", timeout=LIMIT, direct=True)
    rehearsal = FaultRehearsal(options, ignore, faults)
    verdict = rehearsal.run()
    assert rehearsal.compute_findings().is_sound, rehearsal.compute_findings()
    assert verdict.is_same


def test_run_with_killed_fed_server_equals_simulation(tmp_path: Path) -> None:
    """The main server resumes from a checkpoint of two rounds ago; the restarted fed server has no state."""
    spec = small_spec(tmp_path, "M=2", "C=5", "R=4", "K=3", "every=3", "engine=fast", "algorithm=fedavg")
    faults = [Fault("kill-fed", 1, 1, 1), Fault("kill-server", 4, 0, 1), Fault("kill-fed", 5, 1), Fault("cut", 6, 0)]
    rehearsal = FaultRehearsal(RehearsalOptions(spec, tmp_path / "run", timeout=LIMIT, fed=True), ignore, faults)
    verdict = rehearsal.run()
    assert rehearsal.compute_findings().is_sound, rehearsal.compute_findings()
    assert verdict.is_same and len(rehearsal.scheduler.injected) == len(faults)


def test_fault_after_last_visit_is_reported_as_missing(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=2", "C=5", "R=1", "K=3", "engine=fast")
    rehearsal = FaultRehearsal(RehearsalOptions(spec, tmp_path / "run", timeout=LIMIT), ignore, [Fault("cut", 100)])
    verdict = rehearsal.run()
    assert verdict.is_same and len(rehearsal.compute_findings().missing) == 1


def test_random_plan_depends_only_on_seed(tmp_path: Path) -> None:
    spec, kinds = small_spec(tmp_path), list(KINDS)
    plans = [draw_plan(seed, spec, range(4), kinds) for seed in (7, 7, 8)]
    assert plans[0] == plans[1] != plans[2]


def test_random_plans_draw_every_kind(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "route=peer-to-peer")
    kinds = list_possible_kinds(spec, 4, direct=True, fed=True)
    assert set(kinds) == set(KINDS)
    assert {fault.kind for seed in range(200) for fault in draw_plan(seed, spec, range(4), kinds)} == set(KINDS)


def test_plan_with_skip_policy_contains_absent_client(tmp_path: Path) -> None:
    plans = [draw_plan(seed, small_spec(tmp_path), range(4), ["cut"], "skip") for seed in range(20)]
    assert all("stay-away" in [fault.kind for fault in plan] for plan in plans)


def test_random_plans_have_no_faults_that_exclude_each_other(tmp_path: Path) -> None:
    """A step that is sent once cannot carry two faults; the last visit of a client has one step K - 1."""
    spec = small_spec(tmp_path, "M=3", "K=4", "R=4")
    kinds = list_possible_kinds(spec, 3)
    for seed in range(1, 2001):
        plan = draw_plan(seed, spec, range(3), kinds)
        last = [f for f in plan if f.after > 6 and f.step == 3 and KINDS[f.kind].at == "step"]
        for i, first in enumerate(last):
            later = [fault for fault in last[i + 1 :] if fault.client == first.client]
            assert plan and not (first.kind in ("duplicate", "replay") and later), (seed, plan)
        assert not any(find_excluded_faults(plan, spec, m, 3) for m in range(3))


@pytest.mark.parametrize(
    ("settings", "faults", "excluded"),
    [
        ("", [Fault("duplicate", 7, 2, 3), Fault("nan", 8, 2, 3)], [1]),  # seed 137
        ("", [Fault("nan", 7, 2, 3), Fault("duplicate", 8, 2, 3)], []),  # the refused step is sent again
        ("", [Fault("duplicate", 6, 2, 3), Fault("nan", 8, 2, 3)], []),  # the first one happens a round earlier
        ("", [Fault("duplicate", 7, 2, 2), Fault("nan", 8, 2, 2)], []),  # the second one happens at step 3
        ("", [Fault("duplicate", 7, 1, 3), Fault("nan", 8, 2, 3)], []),  # different clients
        ("", [Fault("replay", 9, 2, 2), Fault("replay", 9, 2, 2), Fault("leap", 9, 2, 2)], [2]),
        ("", [Fault("lost-commit", 6, 2), Fault("lost-commit", 6, 2), Fault("lost-commit", 6, 2)], [2]),
        ("placement=whole algorithm=fedavg", [Fault("delay", 9)] * 2 + [Fault("kill-relay", 9)], [2]),
        ("placement=whole algorithm=fedavg", [Fault("cut", 9)] * 2 + [Fault("kill-relay", 9)], []),
    ],
)
def test_fault_is_excluded_if_others_take_its_messages(
    settings: str, faults: list[Fault], excluded: list[int], tmp_path: Path
) -> None:
    spec = small_spec(tmp_path, "M=3", "K=4", "R=4", *settings.split())
    found = [fault for m in range(3) for fault in find_excluded_faults(faults, spec, m, 3)]
    assert found == [faults[i] for i in excluded]


@pytest.mark.parametrize(
    ("faults", "excluded"),
    [
        ([Fault("cut", 2, 0)], [0]),  # client 0 has no visit after the first round
        ([Fault("cut", 0, 0)], []),
        ([Fault("replay", 0, 1)], [0]),  # a step of an earlier visit of client 1 does not exist
        ([Fault("replay", 0, 2)], []),
    ],
)
def test_fault_is_excluded_if_its_client_has_no_visit(faults: list[Fault], excluded: list[int], tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=3", "S=2", "R=3")
    rounds = [[0, 2], [2, 1], [2, 2]]
    found = [fault for m in range(3) for fault in find_excluded_faults(faults, spec, m, 2, rounds)]
    assert found == [faults[i] for i in excluded]


@pytest.mark.parametrize("away", ["wait", "skip"])
def test_faults_of_random_plans_happen_to_clients_that_are_visited(away: str, tmp_path: Path) -> None:
    """In a round of S < M clients, the client that was drawn first may have no visit any more."""
    spec = small_spec(tmp_path, "M=6", "S=2", "R=3", "order=sampled")
    order = Sampled(6, 2, seed=1)
    visits = [(r, m) for r in range(3) for m in order(r)]
    kinds = [kind for kind in list_possible_kinds(spec, 6) if kind != "replay"]  # needs two visits of a client
    for seed in range(300):
        plan = draw_plan(seed, spec, range(6), kinds, away, order)
        assert plan, seed
        for fault in plan:
            assert any(m == fault.client and fault.after <= 2 * r for r, m in visits), (seed, fault)


def test_plan_file_is_sorted_by_number_of_visits(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('[[fault]]\nkind = "cut"\nafter = 5\n[[fault]]\nkind = "nan"\nafter = 2\nclient = 1\nstep = 3\n')
    assert read_plan(file) == [Fault("nan", 2, 1, 3), Fault("cut", 5, 0)]


def test_unknown_kind_raises_error_with_similar_name(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('[[fault]]\nkind = "kill-sever"\nafter = 5\n')
    with pytest.raises(UnknownName) as error:
        read_plan(file)
    assert error.value.name == "kill-sever" and "kill-server" in str(error.value.hint)


@pytest.mark.parametrize(
    ("settings", "fault", "error"),
    [
        ("placement=whole algorithm=fedavg", Fault("nan", 0), InputError),
        ("", Fault("cut", 0, client=9), OutOfRange),
        ("", Fault("cut", 0, step=2), OutOfRange),
    ],
)
def test_impossible_fault_raises_error_before_start(
    settings: str, fault: Fault, error: type[Exception], tmp_path: Path
) -> None:
    rehearsal = FaultRehearsal(
        RehearsalOptions(small_spec(tmp_path, *settings.split()), tmp_path / "run"), ignore, [fault]
    )
    with pytest.raises(error):
        rehearsal.prepare()


def test_whole_model_has_no_step_faults(tmp_path: Path) -> None:
    kinds = list_possible_kinds(small_spec(tmp_path, "placement=whole", "algorithm=fedavg"), 4)
    assert "kill-server" in kinds and not {"nan", "duplicate", "extra-step", "lost-reply"} & set(kinds)


def test_plan_with_skip_policy_has_one_skip_per_client(tmp_path: Path) -> None:
    """A skipped client may not return before the last round."""
    for seed in range(40):
        plan = draw_plan(seed, small_spec(tmp_path), range(2), ["extra-step", "stay-away"], "skip")
        assert len({fault.client for fault in plan}) == len(plan)
