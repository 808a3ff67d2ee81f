"""VGG-11 on a GPU, estimated: by the formula that the caption states."""

from splitrelay.paper.budget import KINDS, LAUNCHED, SHARE, Accelerator, build_accelerators_table, estimate_hours
from splitrelay.paper.cells import CELLS
from splitrelay.runs.spec import load_spec


def test_hours_are_steps_and_looks_by_their_flops() -> None:
    """20 images forward and backward, or 10,000 forward, at a share of the peak."""
    spec = load_spec(None, ["preset=paper/cross-device-cifar10-c1-k5", "R=72", "every=2"])
    kind, forward = Accelerator("slow", 1e12), 3e8
    step, look = 3 * 20 * forward / (SHARE * 1e12), 10_000 * forward / (SHARE * 1e12)
    assert abs(estimate_hours(spec, kind, forward) - (72 * 10 * 5 * step + 36 * look) / 3600) < 1e-9


def test_a_step_takes_as_long_as_its_launches() -> None:
    assert Accelerator("endless", 1e30).seconds(1e9) == LAUNCHED


def test_every_cell_of_vgg11_has_its_row_and_all_together_the_last() -> None:
    sheet = build_accelerators_table()
    assert len(sheet.rows) == 1 + sum(cell.data == "cifar10" for cell in CELLS.values())
    for kind in KINDS:
        whole = sum(record[kind.name] for record in sheet.records)
        assert f"{whole:.0f}" in sheet.rows[-1]
