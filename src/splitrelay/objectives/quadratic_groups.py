"""Groups of quadratics by name: the nine of the paper, the authors' variant of them, and groups from a file."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.errors import InputError, UnknownName
from splitrelay.objectives.quadratic import Quadratics
from splitrelay.randomness import Purpose, rng
from splitrelay.structured_text import parse_json, parse_toml

PAPER_H = ((Fraction(1), Fraction(1)), (Fraction(4, 3), Fraction(2, 3)), (Fraction(2), Fraction(0)))
AUTHORS_H = ((Fraction(1), Fraction(1)), (Fraction("1.34"), Fraction("0.66")), (Fraction(2), Fraction(0)))
PAPER_A = (1, 10, 100)

KEYS = ("name", "H", "V", "sigma2")
FORM = 'Write: {"groups": [{"name": "one", "H": [1, 1], "V": [1, -1]}]}.'


@dataclass(frozen=True)
class Group:
    """Quadratic clients with a name."""

    name: str
    problem: Quadratics


def scalar_group(name: str, h: Sequence[Fraction | float], a: Sequence[Fraction | float], sigma2: float = 0.0) -> Group:
    """Return a group of one-dimensional clients F_m(x) = h_m x^2/2 + a_m x."""
    H = np.array([float(value) for value in h]).reshape(-1, 1, 1)
    V = np.array([float(value) for value in a]).reshape(-1, 1)
    return Group(name, Quadratics(H, V, sigma2))


def nine_groups(curvatures: Sequence[Sequence[Fraction]] = PAPER_H, sigma2: float = 0.0) -> tuple[Group, ...]:
    """Return the groups 1 to 9. Each row has one pair of curvatures, each column one size a of the opposite slopes."""
    pairs = [(h, a) for h in curvatures for a in PAPER_A]
    return tuple(scalar_group(str(i), h, (Fraction(a), Fraction(-a)), sigma2) for i, (h, a) in enumerate(pairs, 1))


def paper_groups() -> tuple[Group, ...]:
    """Return the nine groups of the paper with exactly 2/3 and 1/3 as coefficients of x^2 (half the curvature)."""
    return nine_groups(PAPER_H)


def authors_groups() -> tuple[Group, ...]:
    """Return the nine groups of the authors' later code, with 0.67 and 0.33."""
    return nine_groups(AUTHORS_H)


def read_groups(path: Path) -> tuple[Group, ...]:
    """Read groups from a TOML or JSON file. Each has a name, and H and V per client (H_m is a number or a matrix)."""
    content = _read_file(path)
    entries = content.get("groups") if isinstance(content, dict) else content
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path.name} holds no groups", hint=FORM)
    groups = tuple(_parse_group(entry, f"{path.name}, group {i}") for i, entry in enumerate(entries, 1))
    names = [group.name for group in groups]
    if len(set(names)) < len(names):
        raise InputError(f"{path.name} has two groups of one name", value=max(names, key=names.count))
    return groups


def _read_file(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        return parse_toml(text) if path.suffix == ".toml" else parse_json(text) if text.strip() else {}
    except OSError as error:
        raise InputError(f"cannot read {path}", value=error.strerror) from None
    except UnicodeDecodeError:
        raise InputError(f"{path.name} is not text", hint=FORM) from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise InputError(f"{path.name} is not {kind}", value=str(error).splitlines()[0]) from None


def _parse_group(entry: Any, where: str) -> Group:
    if not isinstance(entry, dict):
        raise InputError(f"{where} is no table", value=repr(entry), hint=FORM)
    for key in entry:
        if key not in KEYS:
            raise UnknownName(f"key in {where}", str(key), KEYS)
    for key in ("H", "V"):
        if not isinstance(entry.get(key), list) or not entry[key]:
            raise InputError(f"{where} needs a list {key}, one entry per client", hint=FORM)
    H, V = [_parse_matrix(value, where) for value in entry["H"]], [_parse_row(value, where) for value in entry["V"]]
    if len(H) != len(V):
        raise InputError(f"{where} needs as many H as V", value=f"{len(H)} and {len(V)}")
    d = len(V[0])
    if any(len(v) != d for v in V) or any(len(h) != d or any(len(row) != d for row in h) for h in H):
        raise InputError(f"{where} needs every H_m of d x d and every V_m of d numbers, with one d for all")
    name = entry.get("name", where.rsplit(" ", 1)[-1])
    return Group(str(name), _build_quadratics(H, V, _parse_number(entry.get("sigma2", 0), where), where))


def _build_quadratics(H: list[list[list[float]]], V: list[list[float]], sigma2: float, where: str) -> Quadratics:
    try:
        problem = Quadratics(np.array(H), np.array(V), sigma2)
        problem.x_star  # noqa: B018 - refused here, not in the middle of a study
    except InputError as error:
        raise type(error)(f"{where}: {error.what}", value=error.value, limit=error.limit, hint=error.hint) from None
    return problem


def _parse_matrix(value: Any, where: str) -> list[list[float]]:
    return [_parse_row(row, where) for row in value] if isinstance(value, list) else [[_parse_number(value, where)]]


def _parse_row(value: Any, where: str) -> list[float]:
    return (
        [_parse_number(entry, where) for entry in value] if isinstance(value, list) else [_parse_number(value, where)]
    )


def _parse_number(value: Any, where: str) -> float:
    try:
        number = float(Fraction(value)) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        raise InputError(f"{where} needs numbers (4/3 as a string is one)", value=repr(value)) from None
    if isinstance(value, bool) or not math.isfinite(number):
        raise InputError(f"{where} needs finite numbers", value=repr(value))
    return number


def with_noise(groups: Sequence[Group], sigma2: float) -> tuple[Group, ...]:
    """Return the groups with gradient noise of this variance."""
    return tuple(Group(group.name, replace(group.problem, sigma2=sigma2)) for group in groups)


def random_groups(M: int, d: int, seed: int, number: int = 3) -> tuple[Group, ...]:
    """Draw random quadratics: curvatures from 1/4 to 2 in random directions, slopes of size 1 that sum to zero."""
    return tuple(
        Group(f"random {j}", _draw_quadratics(M, d, rng(seed, Purpose.INSTANCES, j))) for j in range(1, number + 1)
    )


def _draw_quadratics(M: int, d: int, generator: np.random.Generator) -> Quadratics:
    turns = np.linalg.qr(generator.standard_normal((M, d, d))).Q
    H = np.einsum("mij,mj,mkj->mik", turns, generator.uniform(0.25, 2, (M, d)), turns)
    V = generator.standard_normal((M, d))
    V -= V.mean(0)
    scale = np.sqrt((V**2).sum(1).mean())
    return Quadratics((H + H.swapaxes(1, 2)) / 2, V / scale if scale > 0 else V)
