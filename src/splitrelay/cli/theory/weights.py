"""`splitrelay theory weights`."""

from __future__ import annotations

import math

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option
from splitrelay.cli.key_values import Key, choice, count, number, parse_settings, settings_argument
from splitrelay.errors import InputError, OutOfRange
from splitrelay.notation import describe_symbol
from splitrelay.table import Table, format_cell

MAX_ROUNDS = 10_000_000  # the weight of each round is in memory
KEYS = (
    Key("mu", number, f"{describe_symbol('mu')}; 0 gives equal weights", many=False),
    Key("eta_tilde", number, describe_symbol("eta_tilde"), many=False),
    Key("R", count, f"{describe_symbol('R')}; at most {MAX_ROUNDS:.0e}", many=False),
    Key("rounds", choice("some", "all"), "rounds to list: some (default, mostly late ones) or all", many=False),
)


@click.command(cls=Command, keys=KEYS, example="splitrelay theory weights mu=1 eta_tilde=1/12 R=1e6")
@settings_argument(KEYS)
@format_option
def weights(settings: tuple[str, ...], shape: str) -> None:
    """Compute the weights w_r = (1 - mu eta_tilde/2)^-(r+1) of the averaged output, for any R.

    share is w_r/W_R, the part of x^r in the output. theta is w_r/W_r, by which the running average moves towards x^r.
    """
    from splitrelay.theory import weights

    given = {name: values[0] for name, values in parse_settings(settings, KEYS).items()}
    rounds = given.pop("rounds", "some")
    for name in ("mu", "eta_tilde", "R"):
        if name not in given:
            raise InputError(f"theory weights needs {name}, {describe_symbol(name)}", hint=f"Give {name}=...")
        if given[name] < 0:
            raise OutOfRange(f"{name} must not be negative", value=given[name], limit=f"{name} >= 0")
    if given["R"] > MAX_ROUNDS:
        raise OutOfRange("theory weights lists every round", limit=f"R <= {MAX_ROUNDS:.0e}", value=given["R"])
    result = weights(given["mu"], given["eta_tilde"], given["R"])
    records = [
        {"r": r} | {name: float(getattr(result, name)[r]) for name in ("log_w", "share", "theta")}
        for r in _choose_rounds(given["R"], rounds)
    ]
    is_csv = shape == "csv"
    rows = [(a["r"], a["log_w"] if is_csv else format_exp(a["log_w"]), a["share"], a["theta"]) for a in records]
    mu, eta_tilde = format_cell(given["mu"]), format_cell(given["eta_tilde"])
    title = f"Weights of the averaged output: mu={mu}, eta_tilde={eta_tilde}, R={given['R']}"
    tail = result.share[::-1].cumsum()
    half, most = (int((tail < part).sum()) + 1 for part in (0.5, 0.99))
    note = f"W_R = {format_exp(result.log_W)}."
    note += f" Half of the weight lies on the last {half} iterates, 99 % on the last {most}."
    table = Table(("r", "log_w" if is_csv else "w_r", "share", "theta"), rows, title, [note])
    emit(table, given | {"log_W": result.log_W, "rounds": records}, shape)


def _choose_rounds(R: int, rounds: str) -> list[int]:
    """Return all rounds, or round 0 and the rounds 0, 1, 2, 5, 10, 20, 50, ... before the last one."""
    if rounds == "all" or R < 12:
        return list(range(R + 1))
    steps = {step * 10**power for power in range(len(str(R))) for step in (1, 2, 5)}
    return sorted({0, R} | {R - step for step in steps if step <= R})


def format_exp(log: float) -> str:
    """Format exp(log) with five digits, even if it exceeds the range of double precision."""
    exponent = math.floor(log / math.log(10))
    if abs(exponent) < 15:
        return format_cell(math.exp(log))
    return f"{math.exp(log - exponent * math.log(10)):.4f}e{exponent:+03d}"
