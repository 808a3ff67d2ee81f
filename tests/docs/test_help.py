"""Every command explains itself without large imports; compose.yaml starts commands and options that exist."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from splitrelay.cli.main import COMMAND_GROUPS, app
from tests.docs.substitutions import TOGETHER, instead
from tests.support.command_line import Invoke
from tests.support.pages import COMMANDS, LEAVES, PageRunner, get_example

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
SLOW = ("json", "csv", "tempfile", "pathlib", "signal", "fractions")  # together a sixth of the time of --help


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
from splitrelay.cli.main import app
app(["--help"], standalone_mode=False)
slow = sorted(set({SLOW!r}) & set(sys.modules))
assert not slow, f"--help imports {{slow}}"
from click.testing import CliRunner
for path in {list(COMMANDS)!r}:
    answer = CliRunner().invoke(app, [*path.split()[1:], "--help"])
    assert answer.exit_code == 0, path
    heavy = sorted(set({HEAVY!r}) & set(sys.modules))
    assert not heavy, f"{{path}} --help imports {{heavy}}"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_training_imports_neither_the_compiler_of_torch_nor_scikit_learn(tmp_path: Path) -> None:
    script = f"""
import sys
from splitrelay.cli.main import app
app("{SMALL}".split()[1:], standalone_mode=False)
sys.exit(" ".join({{"torch._dynamo", "sklearn", "scipy", "matplotlib"}} & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
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


ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
WRITABLE = {"/run-directory", "/state"}  # everything else that is mounted is for reading


def words_of(service: dict[str, Any]) -> list[list[str]]:
    """What the service runs, and what asks after its health, without the program's name."""
    kind, program, *health = service["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "splitrelay")
    return [service["command"], [word for word in health if word not in ("-q", "--quiet")]]


def refusal(words: list[str]) -> str | None:
    """Why the command line would not take these words; None if it would."""
    name, *rest = words
    with click.Context(app) as context:
        command = app.get_command(context, name)
    if command is None:
        return f"no command {name}"
    try:
        command.make_context(name, list(rest), resilient_parsing=False).close()
    except click.UsageError as error:
        return error.format_message()
    return None


@pytest.mark.parametrize("name", SERVICES)
def test_every_command_and_option_exists(name: str) -> None:
    assert [refusal(words) for words in words_of(SERVICES[name])] == [None, None]


def test_a_wrong_word_is_caught() -> None:
    assert refusal(["serve", "/spec.toml", "--kyes", "/keys"]) is not None
    assert refusal(["sevre", "/spec.toml"]) is not None


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_write_where_it_must_and_nowhere_else(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"] and "privileged" not in service
    mounts = [volume.split(":") for volume in service["volumes"]]
    assert {target for _, target, *mode in mounts if mode != ["ro"]} <= WRITABLE


@pytest.mark.parametrize("name", SERVICES)
def test_whatever_a_command_reads_is_mounted(name: str) -> None:
    service = SERVICES[name]
    mounted = [volume.split(":")[1] for volume in service["volumes"]]
    read = [word for words in words_of(service) for word in words if word.startswith("/")]
    assert [path for path in read if not any(Path(path).is_relative_to(place) for place in mounted)] == []


@pytest.mark.parametrize("name", SERVICES)
def test_every_target_is_a_stage_of_the_image_that_ends_without_root(name: str) -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.M)[1:]
    (stage,) = [text for text in stages if text.splitlines()[0].endswith(f" AS {SERVICES[name]['build']['target']}")]
    assert re.findall(r"^USER (\d+)", stage, flags=re.M)[-1] != "0"


def test_what_the_image_copies_is_sent_to_the_builder() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, flags=re.M) for word in line.split()
    ]
    assert copied and set(copied) <= kept and all((ROOT / name).exists() for name in copied)
