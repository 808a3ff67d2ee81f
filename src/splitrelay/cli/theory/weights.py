"""`splitrelay theory weights`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.key_values import Key, choice, count, number, parsed, settings_argument
from splitrelay.cli.table_output import Table, cell, emit, format_option
from splitrelay.errors import InputError, OutOfRange
from splitrelay.notation import describe_symbol

if TYPE_CHECKING:
    from splitrelay.theory import Weights

MOST = 10_000_000  # rounds: each has its own weight in memory
KEYS = (
    Key("mu", number, f"{describe_symbol('mu')}; 0 gives equal weights", many=False),
    Key("eta_tilde", number, describe_symbol("eta_tilde"), many=False),
    Key("R", count, f"{describe_symbol('R')}; at most {MOST:.0e}", many=False),
    Key(
        "rounds",
        choice("some", "all"),
        "which to list: some (default, thinning out towards the first) or all",
        many=False,
    ),
)


@click.command(cls=Command, keys=KEYS, example="splitrelay theory weights mu=1 eta_tilde=1/12 R=1e6")
@settings_argument(KEYS)
@format_option
def weights(settings: tuple[str, ...], shape: str) -> None:
    """The weights of the averaged output, w_r = (1 - mu eta_tilde/2)^-(r+1), at any R.

    share is w_r/W_R, the part of x^r in the output; theta is w_r/W_r, by which the running average moves to x^r.
    """
    from splitrelay.theory import weights

    given = {name: values[0] for name, values in parsed(settings, KEYS).items()}
    rounds = given.pop("rounds", "some")
    _checked(given)
    found = weights(given["mu"], given["eta_tilde"], given["R"])
    lines = [_line(found, r) for r in _listed(given["R"], rounds)]
    payload = given | {"log_W": found.log_W, "rounds": lines}
    rows = [(line["r"], power(line["log_w"]), line["share"], line["theta"]) for line in lines]
    if shape == "csv":
        rows = [(line["r"], line["log_w"], line["share"], line["theta"]) for line in lines]
    columns = ("r", "log_w" if shape == "csv" else "w_r", "share", "theta")
    emit(Table(columns, rows, _title(given), _notes(found)), payload, shape)


def _checked(given: dict[str, Any]) -> None:
    for name in ("mu", "eta_tilde", "R"):
        if name not in given:
            raise InputError(f"theory weights needs {name}, {describe_symbol(name)}", hint=f"Give {name}=...")
        if given[name] < 0:
            raise OutOfRange(f"{name} must not be negative", value=given[name], limit=f"{name} >= 0")
    if given["R"] > MOST:
        raise OutOfRange("theory weights lists every round", limit=f"R <= {MOST:.0e}", value=given["R"])


def _listed(R: int, rounds: str) -> list[int]:
    """All rounds, or the first one and those at 0, 1, 2, 5, 10, 20, 50, ... before the last."""
    if rounds == "all" or R < 12:
        return list(range(R + 1))
    steps = {step * 10**power for power in range(len(str(R))) for step in (1, 2, 5)}
    return sorted({0, R} | {R - step for step in steps if step <= R})


def _line(found: Weights, r: int) -> dict[str, Any]:
    return {
        "r": r,
        "log_w": float(found.log_w[r]),
        "share": float(found.share[r]),
        "theta": float(found.theta[r]),
    }


def _title(given: dict[str, Any]) -> str:
    return f"Weights of the averaged output: mu={cell(given['mu'])}, " + (
        f"eta_tilde={cell(given['eta_tilde'])}, R={given['R']}"
    )


def _notes(found: Weights) -> list[str]:
    tail = found.share[::-1].cumsum()
    half, most = (int((tail < part).sum()) + 1 for part in (0.5, 0.99))
    return [
        f"W_R = {power(found.log_W)}. Half of the weight lies on the last {half} iterates, 99 % on the last {most}.",
    ]


def power(log: float) -> str:
    """exp(log) in five digits, also where no double holds it."""
    exponent = math.floor(log / math.log(10))
    if abs(exponent) < 15:
        return cell(math.exp(log))
    return f"{math.exp(log - exponent * math.log(10)):.4f}e{exponent:+03d}"
