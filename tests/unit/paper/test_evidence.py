"""From records to a page: the paper's claims looked up, every table made again, and a page that holds them."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import InputError
from splitrelay.paper.claims import CLAIMS, build_claims_table
from splitrelay.paper.evidence import VIEWS, Evidence, fill_blocks
from tests.support.error_fields import expect_error
from tests.support.run_directories import write_run

FAR, AT_ALL, SOONER, SOONER_IN_SILOS, CLOSE = (claim.says for claim in CLAIMS[:5])


def met(folder: Path, ssl: float, fedavg: float, *words: str) -> None:
    """Both algorithms in one place, with three seeds: accuracies at the end, which differ a little."""
    for name, top in (("ssl", ssl), ("fedavg", fedavg)):
        for j, seed in enumerate((1234, 666, 22)):
            home = folder / "-".join([name, str(seed), *words]).replace("=", "")
            end = top + 0.0005 * (j - 1) * (name == "ssl")
            write_run(home, [0.1, end, end], *words, f"algorithm={name}", f"seed={seed}")


def answers(folder: Path) -> dict[str, str]:
    return {record["claim"]: record["holds"] for record in build_claims_table(folder).records}


def test_a_large_gap_at_the_papers_rates_that_tuning_closes_holds_in_part(tmp_path: Path) -> None:
    met(tmp_path / "cells", 0.9, 0.5, "C=1")
    assert answers(tmp_path)[FAR] == "yes"
    met(tmp_path / "tuned/best", 0.9, 0.89, "C=1")
    found = answers(tmp_path)
    assert (found[FAR], found[AT_ALL]) == ("in part", "yes")


def test_what_was_not_run_is_open(tmp_path: Path) -> None:
    met(tmp_path / "cells", 0.9, 0.2, "C=1")
    found = answers(tmp_path)
    assert found[CLOSE] == "not run yet" and found[SOONER] == "yes (means)"


def test_one_algorithm_alone_says_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "cells" / "ssl", [0.1, 0.9], "C=1", "algorithm=ssl")
    assert Evidence(tmp_path).select("cells") == []
    with expect_error(InputError, what=str(tmp_path), limit=("cells", "tuned/best")):
        build_claims_table(tmp_path)


@pytest.mark.parametrize(("ends", "holds"), [((0.5, 0.7, 0.6), "yes"), ((0.5, 0.6, 0.7), "no")])
def test_more_local_steps_help_and_then_hurt(tmp_path: Path, ends: tuple[float, ...], holds: str) -> None:
    for K, top in zip((5, 10, 20), ends, strict=True):
        met(tmp_path / "silos/best", top, 0.4, "C=1", f"K={K}", "M=10")
    assert answers(tmp_path)["SSL gains from K = 5 to 10, then loses (silos, C = 1)."] == f"{holds} (means)"


def test_fewer_rounds_explain_the_loss_where_the_longer_run_was_no_better_then(tmp_path: Path) -> None:
    for name in ("ssl", "fedavg"):
        long = {r: 0.6 if r < 600 else 0.9 for r in range(0, 1001, 10)}
        write_run(tmp_path / "cells" / f"{name}-1", long, "C=1", f"algorithm={name}")
        write_run(tmp_path / "cells" / f"{name}-2", dict.fromkeys(range(0, 401, 10), 0.8), "C=2", f"algorithm={name}")
    (found,) = [record for record in build_claims_table(tmp_path).records if "400 rounds instead" in record["claim"]]
    assert found["holds"] == "yes (means)" and found["seen"] == "MNIST K=10: C=1 90.0, after 400 rounds 60.0; C=2 80.0"


@pytest.mark.parametrize(("clipped", "holds"), [((0.4, 0.8), "yes"), ((0.6, 0.4), "in part"), ((0.8, 0.95), "no")])
def test_clipping_hurts_where_every_run_loses_and_fedavg_most(
    tmp_path: Path, clipped: tuple[float, float], holds: str
) -> None:
    """FedAvg ends at 0.7 without a largest norm, SSL at 0.9."""
    for name, free, other in (("fedavg", 0.7, clipped[0]), ("ssl", 0.9, clipped[1])):
        for clip, top in (("none", free), ("10", other)):
            write_run(tmp_path / "clipping" / name / clip, [0.1, top], "C=1", f"algorithm={name}", f"clip={clip}")
    assert answers(tmp_path)["Clipping hurts both where C = 1, FedAvg above all."] == f"{holds} (means)"


def test_a_norm_that_lets_a_larger_rate_win_does_not_hurt(tmp_path: Path) -> None:
    for clip, eta, top in (("none", 0.01, 0.7), ("none", 0.1, 0.1), ("10", 0.01, 0.6), ("10", 0.1, 0.9)):
        home = tmp_path / "tuned" / "search" / f"{clip}-{eta}"
        write_run(home, [0.1, top], "C=1", "algorithm=fedavg", f"clip={clip}", f"eta={eta}")
    write_run(tmp_path / "tuned/search/broke", [0.99], "C=1", "algorithm=fedavg", "eta=1", "R=5")  # no end to speak of
    (found,) = [record for record in build_claims_table(tmp_path).records if "Clipping hurts" in record["claim"]]
    assert found["holds"] == "no (means)"
    assert found["seen"] == "FedAvg on MNIST K=10 at the best rate of either: 70.0 without, 90.0 with"


def test_sooner_among_silos_is_another_question(tmp_path: Path) -> None:
    met(tmp_path / "cells", 0.9, 0.2, "C=1")
    met(tmp_path / "silos/best", 0.2, 0.9, "C=1", "M=10")
    found = answers(tmp_path)
    assert (found[SOONER], found[SOONER_IN_SILOS]) == ("yes (means)", "no (means)")


def test_the_small_net_is_asked_too(tmp_path: Path) -> None:
    met(tmp_path / "cells", 0.9, 0.2, "C=1")
    met(tmp_path / "cnncifar/best", 0.2, 0.3, "C=1", "data=cifar10", "model=cnncifar")
    assert answers(tmp_path)[AT_ALL] == "in part"


def test_a_fall_is_measured_from_what_was_reached_and_not_in_the_first_quarter(tmp_path: Path) -> None:
    free, clipped = [0.1, 0.9, 0.1, 0.8, 0.6, 0.9, 0.9, 0.9], [0.1, 0.9, 0.1, 0.8, 0.7, 0.9, 0.9, 0.9]
    for clip, curve in (("none", free), ("10", clipped)):
        write_run(tmp_path / "clipping" / clip, curve, "C=2", "algorithm=ssl", f"clip={clip}", "eta=0.1")
    (found,) = [record for record in build_claims_table(tmp_path).records if "steadier" in record["claim"]]
    assert found["holds"] == "yes (means)" and found["seen"] == "SSL η 0.1: 20.0 points without, 10.0 with"


def test_no_two_views_have_one_name() -> None:
    assert len({view.name for view in VIEWS}) == len(VIEWS)


def test_a_page_holds_what_is_shown_and_keeps_its_own_words() -> None:
    page = "# Title\n<!-- shown: a.md -->\nold\n<!-- end -->\nmine\n"
    assert fill_blocks(page, {"a.md": "new\n"}) == "# Title\n<!-- shown: a.md -->\n\nnew\n\n<!-- end -->\nmine\n"
    with expect_error(InputError, what="a.md"):
        fill_blocks(page, {})


def test_a_page_is_brought_up_to_date_from_the_command_line(tmp_path: Path) -> None:
    met(tmp_path / "records/cells", 0.9, 0.5, "C=1")
    page = tmp_path / "page.md"
    page.write_text("<!-- shown: claims.md -->\n<!-- end -->\n<!-- shown: cells.md -->\n<!-- end -->\n")
    words = ["reproduce", "--from", str(tmp_path / "records"), "--out", str(tmp_path / "out"), "--page", str(page)]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    assert "(+40.0)" in page.read_text() and "*90.00*" in page.read_text()
    assert CliRunner().invoke(app, ["reproduce", "--page", str(page)]).exit_code != 0


@pytest.mark.parametrize(
    ("says", "own"),
    [
        ("FedAvg gains with every step of K (silos, C = 2).", "no: 80.5 80.9 81.2 81.1"),
        ("FedAvg loses with every step of K (silos, C = 1).", "no: 69.3 50.0 25.3 32.1"),
        ("SSL gains from K = 5 to 10, then loses (silos, C = 1).", "yes: 84.8 85.6 84.8 83.2"),
        ("SSL gains from K = 5 to 10, then loses (silos, C = 2).", "no: 85.5 84.3 86.4 85.5"),
        (CLOSE, "yes: -7.0 to +8.6"),
    ],
)
def test_where_the_papers_text_and_tables_disagree_it_is_said(says: str, own: str) -> None:
    (claim,) = [claim for claim in CLAIMS if claim.says == says]
    assert claim.own == own
