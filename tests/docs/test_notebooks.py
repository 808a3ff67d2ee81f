"""Every notebook in examples/ runs from top to bottom, offline, and its last values are those that the text claims."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def list_code(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cell(code: str, names: dict[str, Any], where: str) -> Any:
    """Run a cell, and return the value of its last line as a notebook shows it."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), names)
    return eval(compile(ast.Expression(last.value), where, "eval"), names) if isinstance(last, ast.Expr) else None


def run_notebook(notebook: Path) -> tuple[dict[str, Any], list[Any]]:
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, code in enumerate(list_code(notebook)):
        value = run_cell(code, names, f"{notebook.name}, code cell {number}")
        for method in ("__repr__", "_repr_html_"):  # a notebook asks for both
            getattr(value, method, lambda: "")()
        shown.append(value)
    return names, shown


@pytest.fixture(autouse=True)
def _work_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")


def test_there_are_four_notebooks() -> None:
    assert len(NOTEBOOKS) == 4


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_output(notebook: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)


def test_a_table_reaches_its_auroc() -> None:
    names, _ = run_notebook(ROOT / "examples" / "notebooks" / "table_to_auroc.ipynb")
    assert names["split"].metrics["auroc"] > 0.95


def test_a_residual_network_has_the_same_bits_whole_and_cut() -> None:
    names, shown = run_notebook(ROOT / "examples" / "notebooks" / "residual_network.ipynb")
    assert shown[-1] is True
    assert names["run"].metrics["loss"] < names["run"].rows[0]["test_loss"]


def test_adapters_learn_and_frozen_weights_do_not_travel() -> None:
    names, _ = run_notebook(ROOT / "examples" / "notebooks" / "transformer_with_lora.ipynb")
    assert len(names["run"].x) < names["total"] / 10
    assert names["run"].metrics["accuracy"] > names["run"].rows[0]["test_accuracy"]


def test_an_own_algorithm_holds_its_contract() -> None:
    names, _ = run_notebook(ROOT / "examples" / "notebooks" / "own_algorithm.ipynb")
    assert set(names["results"]["algorithm"]) == {"FedAvg", "ServerMomentum", "SSL"}
