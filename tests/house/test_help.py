"""Every command explains itself, with an example that runs, and asking for help imports none of the heavy rooms."""

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import numpy as np
import pytest
from front_door import Invoke, exemption

from splitrelay.cli.main import app

EXTRA = {"splitrelay model": "torch"}  # what a command cannot do without
SMALL = "splitrelay run data=digits M=5 C=2 R=2 K=1 --out results"
BEFORE = {  # what must have been run for the example to have something to read
    "splitrelay partition show": ("splitrelay partition exdir",),
    "splitrelay partition export": ("splitrelay partition exdir",),
    "splitrelay evaluate": (f"{SMALL}/run",),
    "splitrelay publish": (f"{SMALL}/ssl",),
    "splitrelay verify": (f"{SMALL}/first",),
    "splitrelay compare": (f"{SMALL}/ssl", f"{SMALL}/fedavg algorithm=fedavg"),
    "splitrelay show": (f"{SMALL}/ssl", f"{SMALL}/fedavg algorithm=fedavg"),
    **{
        f"splitrelay {name}": (f"{SMALL}/ssl", f"{SMALL}/fedavg algorithm=fedavg")
        for name in ("table", "figure", "report")
    },
    "splitrelay keys issue": ("splitrelay keys authority",),
    **{
        f"splitrelay keys {name}": ("splitrelay keys authority", "splitrelay keys issue")
        for name in ("show", "renew", "revoke", "rotate")
    },
}
HEAVY = ("numpy", "matplotlib", "torch", "scipy", "sklearn", "ray", "grpc")


def walk(command: click.Command, path: str = "splitrelay") -> Iterator[tuple[str, click.Command]]:
    """Every command and group of the command line, by its full name."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from walk(inner, f"{path} {name}")


COMMANDS = dict(walk(app))
LEAVES = [path for path, command in COMMANDS.items() if not isinstance(command, click.Group)]


def example(path: str) -> str:
    return str(getattr(COMMANDS[path], "example", ""))


@pytest.mark.parametrize("path", COMMANDS)
def test_help_says_what_and_shows_an_example(path: str, splitrelay: Invoke) -> None:
    answer = splitrelay(f"{path} --help")
    assert answer.code == 0
    assert answer.output.startswith(f"Usage: {path}")
    assert "Example:" in answer.output


@pytest.mark.parametrize("path", LEAVES)
def test_the_example_is_of_this_command(path: str) -> None:
    assert example(path).startswith(path)


def own_data(line: str) -> str:
    """The same example on a data set of one's own, so that nothing is fetched."""
    y = np.arange(200) % 10
    np.savez("own.npz", x=(y[:, None, None] * np.ones((8, 8))).astype(np.uint8), y=y)
    return re.sub(r"\bdata=\w+", "data=own.npz", line)


@pytest.mark.parametrize("path", [path for path in LEAVES if exemption(path) is None])
def test_the_example_runs(path: str, splitrelay: Invoke) -> None:
    if path in EXTRA:
        pytest.importorskip(EXTRA[path])
    for line in BEFORE.get(path, ()):
        assert splitrelay(own_data(example(line) if line in COMMANDS else line)).code == 0
    answer = splitrelay(own_data(example(path)))
    assert answer.code == 0, answer.output


def test_help_costs_no_heavy_import() -> None:
    script = f"""
import sys
from click.testing import CliRunner
from splitrelay.cli.main import app
for path in {list(COMMANDS)!r}:
    answer = CliRunner().invoke(app, [*path.split()[1:], "--help"])
    assert answer.exit_code == 0, path
    heavy = sorted(set({HEAVY!r}) & set(sys.modules))
    assert not heavy, f"{{path}} --help imports {{heavy}}"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_entry_point_is_installed() -> None:
    script = (
        "from importlib.metadata import entry_points; print(*entry_points(group='console_scripts', name='splitrelay'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "splitrelay.cli.main:run" in done.stdout
