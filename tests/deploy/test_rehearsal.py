"""Server and clients as real processes, with kill -9 in between: the same weights as in the simulation."""

from pathlib import Path

from relay_kit import small_spec

from splitrelay.deploy.faults import Fault, Troubled, plan_in, random_plan
from splitrelay.deploy.rehearsal import Plan


def test_real_processes_survive_a_plan_of_faults(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=2", "C=5", "R=3", "K=3", "engine=fast")
    faults = [Fault("cut", 1, 0), Fault("kill-server", 3), Fault("kill-client", 4, 1)]
    rehearsal = Troubled(Plan(spec, tmp_path / "run", patience=120), lambda text: None, faults)
    (verdict,) = rehearsal.play()
    assert verdict.same and rehearsal.twice() == 0
    assert [fault.kind for fault in rehearsal.done] == ["cut", "kill-server", "kill-client"]
    assert sum(event["event"] == "listening" for event in rehearsal.events()) == 2
    assert (tmp_path / "run" / "rehearsal" / "logs" / "server.log").exists()


def test_a_random_plan_is_the_same_from_the_same_seed() -> None:
    assert random_plan(7, 20, range(5)) == random_plan(7, 20, range(5)) != random_plan(8, 20, range(5))


def test_a_plan_is_read_in_the_order_of_its_moments(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('[[fault]]\nkind = "cut"\nafter = 5\n[[fault]]\nkind = "kill-client"\nafter = 2\nclient = 1\n')
    assert plan_in(file) == [Fault("kill-client", 2, 1), Fault("cut", 5, 0)]
