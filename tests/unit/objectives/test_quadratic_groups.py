"""Groups by name: the paper's nine, and a user's own from a file."""

import errno
import json
import math
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.objectives.quadratic_groups import Group, authors_groups, paper_groups, read_groups
from tests.support.error_fields import expect_error

REFERENCE = json.loads((Path(__file__).parents[2] / "theory" / "data" / "exact_quadratics.json").read_text())["groups"]


def written(tmp_path: Path, text: str, name: str = "mine.json") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("group", paper_groups(), ids=lambda group: group.name)
def test_the_papers_nine_groups(group: Group) -> None:
    expected, problem = REFERENCE[group.name], group.problem
    assert problem.H.ravel().tolist() == [float(Fraction(expected["h1"])), float(Fraction(expected["h2"]))]
    assert problem.V.ravel().tolist() == [expected["a"], -expected["a"]]
    assert pytest.approx(float(Fraction(expected["L"])), rel=0) == problem.L
    assert problem.mu_min == float(Fraction(expected["mu_min"]))
    assert problem.mu_mean == float(Fraction(expected["mu_mean"]))
    assert problem.zeta2_star == expected["zeta_star"] ** 2
    assert problem.delta == pytest.approx(float(expected["delta_true"]), rel=1e-14)
    assert problem.c_H == pytest.approx([float(Fraction(expected["c_H"]))], rel=1e-14)


@pytest.mark.parametrize(("number", "eta_tilde_star"), [(1, 0.0), (4, 0.718), (5, 0.718), (7, 6.46)])
def test_eta_tilde_star_of_the_nine_groups(number: int, eta_tilde_star: float) -> None:
    assert paper_groups()[number - 1].problem.eta_tilde_star(10) == pytest.approx(eta_tilde_star, rel=1e-3)


def test_the_authors_ran_rounded_thirds() -> None:
    group = authors_groups()[3]
    assert group.problem.H.ravel().tolist() == [1.34, 0.66]
    assert group.problem.delta == pytest.approx(0.3844, abs=5e-5)
    assert group.problem.c_H == pytest.approx([0.34])


def test_json_and_toml_say_the_same(tmp_path: Path) -> None:
    as_json = written(tmp_path, '{"groups": [{"name": "four", "H": ["4/3", "2/3"], "V": [1, -1], "sigma2": 0.5}]}')
    as_toml = written(tmp_path, '[[groups]]\nname="four"\nH=["4/3","2/3"]\nV=[1,-1]\nsigma2=0.5\n', "mine.toml")
    for path in (as_json, as_toml):
        (group,) = read_groups(path)
        assert group.name == "four"
        assert group.problem.delta == pytest.approx(3 / 8)
        assert group.problem.sigma2 == 0.5


def test_matrices_a_bare_list_and_numbers_for_names(tmp_path: Path) -> None:
    text = '[{"H": [[[2, 0], [0, 1]]], "V": [[1, 1]]}, {"H": [1, 3], "V": [0, 4]}]'
    first, second = read_groups(written(tmp_path, text))
    assert (first.name, second.name) == ("1", "2")
    assert first.problem.x_star.tolist() == [-0.5, -1]
    assert second.problem.x_star.tolist() == [-1]


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("", InputError, {"value": None, "hint": '"groups"'}),
        ("{}", InputError, {"value": None, "hint": '"groups"'}),
        ('{"groups": []}', InputError, {"value": None, "hint": '"groups"'}),
        ("[", InputError, {"what": "JSON", "value": "char 1"}),
        ('{"groups": [3]}', InputError, {"what": "group 1", "value": "3", "hint": '"groups"'}),
        ('[{"V": [1]}]', InputError, {"what": ("group 1", "H"), "hint": '"groups"'}),
        ('[{"H": [1], "V": []}]', InputError, {"what": ("group 1", "V"), "hint": '"groups"'}),
        ('[{"H": [1, 1], "V": [1]}]', InputError, {"what": ("group 1", "H", "V"), "value": ("2", "1")}),
        ('[{"H": [1, [[1, 0], [0, 1]]], "V": [1, 1]}]', InputError, {"what": ("group 1", "H_m", "d x d", "V_m")}),
        ('[{"H": ["x"], "V": [1]}]', InputError, {"what": ("group 1", "4/3"), "value": "'x'"}),
        ('[{"H": [true], "V": [1]}]', InputError, {"what": "group 1", "value": "True"}),
        ('[{"H": [NaN], "V": [1]}]', InputError, {"what": "group 1", "value": "nan"}),
        ('[{"H": [1, -1], "V": [1, 1]}]', OutOfRange, {"what": "group 1", "value": 0.0, "limit": "H_m"}),
        (
            '[{"H": [1], "V": [1], "sigma2": -1}]',
            OutOfRange,
            {"what": "group 1", "value": -1.0, "limit": "0 <= sigma2 < inf"},
        ),
        ('[{"name": "a", "H": [1], "V": [1]}, {"name": "a", "H": [1], "V": [1]}]', InputError, {"value": "a"}),
    ],
)
def test_a_malformed_file_is_refused_in_one_line(
    tmp_path: Path, text: str, kind: type[InputError], fields: dict[str, Any]
) -> None:
    with expect_error(kind, **fields) as caught:
        read_groups(written(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert "mine.json" in caught.value.what


def test_an_unknown_key_gets_a_suggestion(tmp_path: Path) -> None:
    with expect_error(UnknownName, name="sigma", hint="sigma2"):
        read_groups(written(tmp_path, '[{"H": [1], "V": [1], "sigma": 1}]'))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with expect_error(InputError, what="nowhere.json", value=os.strerror(errno.ENOENT)):
        read_groups(tmp_path / "nowhere.json")
    with expect_error(InputError, what=("mine.toml", "TOML"), value=True):
        read_groups(written(tmp_path, "groups = ", "mine.toml"))
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with expect_error(InputError, what="binary.json", value=None, hint='"groups"'):
        read_groups(tmp_path / "binary.json")


def test_a_linear_client_has_no_optimum_of_its_own(tmp_path: Path) -> None:
    (group,) = read_groups(written(tmp_path, '[{"H": [2, 0], "V": [1, -1]}]'))
    assert group.problem.delta == math.inf
