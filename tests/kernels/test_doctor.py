"""The doctor names both engines and what it measured."""

from splitrelay.runs.machine import findings


def test_both_engines_are_found_and_timed() -> None:
    seen = {found.what: found.seen for found in findings(seconds=0.01)}
    assert seen["fast engine"].startswith("ready (splitrelay-") and seen["reference engine"] == "ready"
    assert seen["LeNet-5 step, batch 20, fast"].endswith(" microseconds")
