"""Every command explains itself, with an example that runs, and asking for help imports none of the large packages."""

import re
import subprocess
import sys

import pytest

from splitrelay.cli.main import COMMAND_GROUPS, app
from tests.docs.substitutions import TOGETHER, instead
from tests.support.command_line import Invoke
from tests.support.page_runner import PageRunner
from tests.support.pages import COMMANDS, LEAVES, get_example

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
        for name in ("table", "figure", "report", "page", "track")
    },
    "splitrelay quarantine": ("mkdir -p run/relay",),
    "splitrelay keys issue": ("splitrelay keys authority",),
    **{
        f"splitrelay keys {name}": ("splitrelay keys authority", "splitrelay keys issue")
        for name in ("show", "renew", "revoke", "rotate")
    },
}
HEAVY = ("numpy", "matplotlib", "torch", "scipy", "sklearn", "ray", "grpc")


@pytest.mark.parametrize("path", COMMANDS)
def test_help_says_what_and_shows_an_example(path: str, splitrelay: Invoke) -> None:
    answer = splitrelay(f"{path} --help")
    assert answer.code == 0
    assert answer.output.startswith(f"Usage: {path}")
    assert "Example:" in answer.output


@pytest.mark.parametrize("path", LEAVES)
def test_the_example_is_of_this_command(path: str) -> None:
    assert get_example(path).startswith(path)


@pytest.mark.parametrize("path", [path for path in LEAVES if not re.match(TOGETHER, path)])
def test_the_example_runs(path: str, splitrelay: Invoke) -> None:
    if path in EXTRA:
        pytest.importorskip(EXTRA[path])
    story = PageRunner(splitrelay)
    for line in BEFORE.get(path, ()):
        story.run(f"before {path}", instead(get_example(line) if line in COMMANDS else line))
    story.run(f"{path} --help", instead(get_example(path)))


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


def test_help_groups_every_command_once(splitrelay: Invoke) -> None:
    names = [name for group in COMMAND_GROUPS.values() for name in group]
    assert sorted(names) == sorted(set(names)) == sorted(app.lazy)
    lines = splitrelay("splitrelay --help").output.splitlines()
    assert "splitrelay demo" in next(line for line in lines[1:] if line.strip())  # what a newcomer types
    assert [line for line in lines if line.rstrip(":") in COMMAND_GROUPS] == [f"{title}:" for title in COMMAND_GROUPS]
