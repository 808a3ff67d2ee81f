"""Server and clients as real processes, with trouble in between: the same weights as in the simulation."""

from pathlib import Path

import pytest

from splitrelay.chaos.fault_kinds import KINDS, Fault, draw_plan, list_possible_kinds, read_plan
from splitrelay.chaos.fault_rehearsal import FaultRehearsal
from splitrelay.deploy.rehearsal import Plan
from splitrelay.errors import InputError, OutOfRange, UnknownName
from tests.support.deployment import small_spec

QUIET = lambda text: None  # noqa: E731


def test_real_processes_survive_a_plan_of_faults(tmp_path: Path) -> None:
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
    rehearsal = FaultRehearsal(Plan(spec, tmp_path / "run", patience=120), QUIET, faults)
    (verdict,) = rehearsal.play()
    assert rehearsal.findings().sound, rehearsal.findings()
    assert verdict.same and len(rehearsal.scheduler.happened) == len(faults)
    assert sum(event["event"] == "listening" for event in rehearsal.events()) == 3
    assert "cannot write" in (tmp_path / "run" / "rehearsal" / "logs" / "server.log").read_text()


def test_skipped_visits_are_left_out_of_the_simulation_too(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=2", "C=5", "K=3", "engine=fast")
    plan = Plan(spec, tmp_path / "run", patience=120, away="skip", lease=0.5)
    rehearsal = FaultRehearsal(plan, QUIET, [Fault("stay-away", 1, 1)])
    (verdict,) = rehearsal.play()
    assert rehearsal.findings().sound, rehearsal.findings()
    assert verdict.skips >= 1 and verdict.weights


def test_a_relay_that_is_killed_reads_nothing_and_loses_nothing(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=2", "C=5", "R=3", "K=3", "engine=fast", "route=peer-to-peer")
    faults = [Fault("kill-relay", 1, 1), Fault("stop-server", 3, 0, 1), Fault("lost-reply", 4, 0, 1)]
    rehearsal = FaultRehearsal(Plan(spec, tmp_path / "run", patience=120), QUIET, faults)
    (verdict,) = rehearsal.play()
    assert rehearsal.findings().sound, rehearsal.findings()
    assert verdict.same


def test_a_half_that_was_handed_on_is_not_lost_with_who_made_it(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=2", "C=5", "R=3", "K=3", "engine=fast", "route=peer-to-peer")
    faults = [Fault("delay", 0, 0), Fault("kill-giver", 1, 1), Fault("lost-handed", 2, 0), Fault("kill-server", 3, 1)]
    for turn in range(3):  # on a busy machine a fault may miss its moment, and says so: the plan is played again
        rehearsal = FaultRehearsal(Plan(spec, tmp_path / f"run{turn}", patience=120, direct=True), QUIET, faults)
        (verdict,) = rehearsal.play()
        if not rehearsal.findings().missed:
            break
    assert rehearsal.findings().sound, rehearsal.findings()
    assert verdict.same


def test_neither_server_is_missed_where_one_of_them_averages(tmp_path: Path) -> None:
    """The main server goes back to a checkpoint of two rounds ago, the fed server has lost its memory."""
    spec = small_spec(tmp_path, "M=2", "C=5", "R=4", "K=3", "every=3", "engine=fast", "algorithm=fedavg")
    faults = [Fault("kill-fed", 1, 1, 1), Fault("kill-server", 4, 0, 1), Fault("kill-fed", 5, 1), Fault("cut", 6, 0)]
    rehearsal = FaultRehearsal(Plan(spec, tmp_path / "run", patience=120, fed=True), QUIET, faults)
    (verdict,) = rehearsal.play()
    assert rehearsal.findings().sound, rehearsal.findings()
    assert verdict.same and len(rehearsal.scheduler.happened) == len(faults)


def test_a_fault_that_never_comes_to_its_moment_is_found(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=2", "C=5", "R=1", "K=3", "engine=fast")
    rehearsal = FaultRehearsal(Plan(spec, tmp_path / "run", patience=120), QUIET, [Fault("cut", 100)])
    (verdict,) = rehearsal.play()
    assert verdict.same and rehearsal.findings().missed == ("cut of client 0 at step 0, after 100 visits",)


def test_a_random_plan_is_the_same_from_the_same_seed(tmp_path: Path) -> None:
    spec, kinds = small_spec(tmp_path), list(KINDS)
    plans = [draw_plan(seed, spec, range(4), kinds) for seed in (7, 7, 8)]
    assert plans[0] == plans[1] != plans[2]


def test_random_plans_draw_every_kind(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "route=peer-to-peer")
    kinds = list_possible_kinds(spec, 4, direct=True, fed=True)
    assert set(kinds) == set(KINDS)
    assert {fault.kind for seed in range(200) for fault in draw_plan(seed, spec, range(4), kinds)} == set(KINDS)


def test_where_visits_may_be_skipped_one_client_stays_away(tmp_path: Path) -> None:
    plans = [draw_plan(seed, small_spec(tmp_path), range(4), ["cut"], "skip") for seed in range(20)]
    assert all("stay-away" in [fault.kind for fault in plan] for plan in plans)


def test_a_plan_is_read_in_the_order_of_its_moments(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('[[fault]]\nkind = "cut"\nafter = 5\n[[fault]]\nkind = "nan"\nafter = 2\nclient = 1\nstep = 3\n')
    assert read_plan(file) == [Fault("nan", 2, 1, 3), Fault("cut", 5, 0)]


def test_an_unknown_fault_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('[[fault]]\nkind = "kill-sever"\nafter = 5\n')
    with pytest.raises(UnknownName, match="kill-server"):
        read_plan(file)


@pytest.mark.parametrize(
    ("words", "fault", "error"),
    [
        ("placement=whole algorithm=fedavg", Fault("nan", 0), InputError),
        ("", Fault("cut", 0, client=9), OutOfRange),
        ("", Fault("cut", 0, step=2), OutOfRange),
    ],
)
def test_what_cannot_happen_is_refused_before_anything_starts(
    words: str, fault: Fault, error: type[Exception], tmp_path: Path
) -> None:
    rehearsal = FaultRehearsal(Plan(small_spec(tmp_path, *words.split()), tmp_path / "run"), QUIET, [fault])
    with pytest.raises(error):
        rehearsal.prepare()


def test_where_the_whole_model_is_at_the_client_no_step_can_be_wrong(tmp_path: Path) -> None:
    kinds = list_possible_kinds(small_spec(tmp_path, "placement=whole", "algorithm=fedavg"), 4)
    assert "kill-server" in kinds and not {"nan", "duplicate", "extra-step", "lost-reply"} & set(kinds)


def test_where_visits_may_be_skipped_nobody_is_made_to_lose_two(tmp_path: Path) -> None:
    """Who was skipped once may not be back before the last round."""
    for seed in range(40):
        plan = draw_plan(seed, small_spec(tmp_path), range(2), ["extra-step", "stay-away"], "skip")
        assert len({fault.client for fault in plan}) == len(plan)
