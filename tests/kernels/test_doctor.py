"""The doctor names both engines and what it measured."""

from splitrelay.runs.machine import describe_machine


def test_both_engines_are_found_and_timed() -> None:
    seen = dict(describe_machine(seconds=0.01))
    assert seen["fast engine"].startswith("ready (splitrelay-") and seen["reference engine"] == "ready"
    assert seen["LeNet-5 step, batch 20, fast"].endswith(" microseconds")
