"""The notation table holds every row of the paper's two tables, and each name once."""

import csv
import io
import json

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import UnknownName
from splitrelay.notation import BY_NAME, CUT_SYMBOLS, KEY_SYMBOLS, SYMBOLS, Symbol, describe_symbol, get_axis_label
from tests.support.error_fields import expect_error

# Typed from the paper, row by row; where a row has several symbols they stand side by side.
FIRST_TABLE = [
    "R", "M", "K", r"\pi", "S", r"\eta", r"\tilde\eta", r"\mu", "L", r"\sigma", "B", r"\zeta", r"\zeta_*", "F", "F_m",
    "x^r", "x_m^{(r,k)}", r"g_{\pi_m}^{(r,k)}", r"\mathrm{ExDir}(C,\alpha)",
]  # fmt: skip
SECOND_TABLE = [
    r"\tau_m", "x_c", "x_s", "X_m", "Y_m", r"\hat Y_m", "A_m", r"\ell_{\pi_m}",
    r"\nabla\ell(x_s; A)", r"\nabla\ell(A; x_s)", r"\nabla\ell(x_c; X)",
]  # fmt: skip


@pytest.mark.parametrize(("symbols", "rows"), [(KEY_SYMBOLS, FIRST_TABLE), (CUT_SYMBOLS, SECOND_TABLE)])
def test_every_row_of_the_papers_tables_is_there(symbols: tuple[Symbol, ...], rows: list[str]) -> None:
    assert [symbol.tex for symbol in symbols] == rows


def test_one_name_one_symbol() -> None:
    assert len(BY_NAME) == len(SYMBOLS)


def test_an_axis_shows_the_papers_symbol() -> None:
    assert get_axis_label("eta_tilde") == r"$\tilde\eta$"


def test_an_axis_without_a_symbol_shows_its_name() -> None:
    assert get_axis_label("accuracy") == "accuracy"


def test_the_meaning_of_an_unknown_name_is_an_error() -> None:
    with expect_error(UnknownName, name="eta_tild", hint="eta_tilde"):
        describe_symbol("eta_tild")


@pytest.mark.parametrize("shape", ["table", "markdown", "csv", "json"])
def test_every_shape_shows_every_symbol(shape: str) -> None:
    answer = CliRunner().invoke(app, ["notation", "--format", shape])
    assert answer.exit_code == 0
    assert all(symbol.name in answer.output and symbol.plain in answer.output for symbol in SYMBOLS)


def test_json_carries_the_tex() -> None:
    found = json.loads(CliRunner().invoke(app, ["notation", "--format", "json"]).output)
    assert [row["tex"] for row in found] == [symbol.tex for symbol in SYMBOLS]


def test_csv_is_one_table() -> None:
    found = list(csv.DictReader(io.StringIO(CliRunner().invoke(app, ["notation", "--format", "csv"]).output)))
    assert [row["here"] for row in found] == [symbol.name for symbol in SYMBOLS]
