"""Does compose.yaml start programs that exist, with options that they have, locked away as it says?"""

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from splitrelay.cli.main import app

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
