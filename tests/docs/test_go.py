"""Test ./go: it sets up .venv once, repeats this after a change, and passes all other commands on.

The script is the real one. A fake Python replaces venv and pip, so nothing is installed and no network is used.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ["cat", "cksum", "cp", "dirname", "env", "grep", "mkdir", "mv", "rm", "sed", "sh"]
SHELLS = ["dash", "bash --posix", "busybox sh"]
KERNELS = "src/splitrelay/kernels"
DEADLINE = 300.0
WAITING = "go: another set-up is at work; waiting for it\n"

# Logs its arguments. With GATE, it reports when it starts to install, and waits until the test opens the gate.
FAKE_PYTHON = """#!/bin/sh
printf '%s\\n' "$*" >>"$LOG"
case "$*" in
*realpath*) printf '%s\\n' "$0" ;;
"-m venv "*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
"-m pytest"*) printf '%s\\n' "pytest $* in $PWD" ;;
"-m ensurepip") exit 1 ;;
"-m pip "*" config list") cat "$PIP_SETTINGS" ;;
"-m pip "*" --version") [ -z "${NO_PIP:-}" ] ;;
"-m pip "*" uv") exit 1 ;;
"-m pip "*" install "*)
    [ -z "${GATE:-}" ] || { echo >"$GATE/arrived" && cat "$GATE/open"; }
    cp "$LOUD_TOOL" "${4%/*}/splitrelay" && cp "$LOUD_TOOL" "${4%/*}/ruff" && cp "$LOUD_TOOL" "${4%/*}/mypy" ;;
*) exec "$REAL_PYTHON" "$@" ;;
esac
"""
LOUD_TOOL = """#!/bin/sh
echo "${0##*/}" "$@" in "$PWD" ${UV_INDEX:-}
[ "${1:-}" != wrong ] || exit 2
"""
OLD_PYTHON = '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.10.13\n'
FAKE_UV = """#!/bin/sh
env | grep -E '^(UV_|SSL_CERT|ALL_PROXY)' | sed 's/^/uv: /' >>"$LOG"
exit 1
"""
# Like uv, it catches Ctrl-C and exits with code 1.
PATIENT_UV = """#!/bin/sh
exec "$REAL_PYTHON" -c '
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
open(os.environ["GATE"] + "/arrived", "w").write("!")
sys.exit(signal.sigwait([signal.SIGINT]) and 1)'
"""


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@contextmanager
def accept_signal(number: signal.Signals) -> Iterator[None]:
    """Let programs that start now receive the signal. Background processes ignore it, and their children would, too.

    The parent does this, because code between fork and exec may crash if another test has used gRPC.
    """
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@dataclass(frozen=True)
class Checkout:
    """A copy of the files that ./go reads, with few tools in PATH and a fake Python."""

    home: Path
    root: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def tools(self) -> Path:
        return self.home / "tools"

    @property
    def log(self) -> str:
        path = self.home / "log"
        return path.read_text() if path.exists() else ""

    @property
    def set_ups(self) -> int:
        return sum(" install " in line and not line.endswith(" uv") for line in self.log.splitlines())

    def environment(self, **extra: str) -> dict[str, str]:
        files = {"LOG": "log", "PIP_SETTINGS": "pip-settings", "LOUD_TOOL": "loud-tool", "PATH": "tools"}
        return {name: str(self.home / file) for name, file in files.items()} | {"REAL_PYTHON": sys.executable} | extra

    def go(self, *arguments: str, shell: str = "", cwd: Path | None = None, **extra: str) -> subprocess.Popen[str]:
        with accept_signal(signal.SIGINT):
            process = subprocess.Popen(
                [*shell.split(), str(self.root / "go"), *arguments],
                cwd=cwd or self.home,
                env=self.environment(**extra),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def result(self, *arguments: str, shell: str = "", cwd: Path | None = None, **extra: str) -> tuple[int, str, str]:
        return ended(self.go(*arguments, shell=shell, cwd=cwd, **extra))


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=DEADLINE)
    return process.returncode, out, err


@dataclass(frozen=True)
class Gate:
    """Two pipes that stop a set-up half-way until the test opens the gate."""

    folder: Path

    def arrived(self) -> None:
        pipe = os.open(self.folder / "arrived", os.O_RDWR)
        assert select.select([pipe], [], [], DEADLINE)[0], "the set-up did not reach the gate"
        os.close(pipe)

    def open(self) -> None:
        (self.folder / "open").write_text("")


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path, tmp_path / "a folder" / "it's [here]")
    made.root.mkdir(parents=True)
    (made.root / ".ci").mkdir()
    (made.root / "src" / "splitrelay" / "kernels").mkdir(parents=True)
    for name in ["go", "pyproject.toml", "constraints.txt", "hatch_build.py", ".ci/run", f"{KERNELS}/build.py"]:
        shutil.copy(ROOT / name, made.root / name)
    shutil.copytree(ROOT / KERNELS / "native", made.root / KERNELS / "native")
    made.tools.mkdir()
    for tool in TOOLS:
        (made.tools / tool).symlink_to(str(shutil.which(tool)))
    script(made.tools / "python3", FAKE_PYTHON)
    script(tmp_path / "loud-tool", LOUD_TOOL)
    (tmp_path / "pip-settings").touch()
    yield made
    for process in made.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path / "gate")
    made.folder.mkdir()
    os.mkfifo(made.folder / "arrived")
    os.mkfifo(made.folder / "open")
    yield made
    os.close(os.open(made.folder / "open", os.O_RDWR))  # release a process that still waits


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    name, option = f"{request.param} ".split(" ", 1)
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here")
    return f"{found} {option}"


def test_the_first_call_sets_up_and_the_second_does_not_even_start_python(checkout: Checkout, shell: str) -> None:
    code, out, err = checkout.result("demo", "-q", shell=shell)
    assert (code, out) == (0, f"splitrelay demo -q in {checkout.home}\n")
    assert err.startswith("go: setting up .venv with Python 3.") and err.count("\n") == 1
    log = checkout.log
    assert checkout.result("demo", shell=shell) == (0, f"splitrelay demo in {checkout.home}\n", "")
    assert checkout.log == log


def test_arguments_keep_their_spaces(checkout: Checkout) -> None:
    assert checkout.result("a  b", "*", "")[1] == f"splitrelay a  b *  in {checkout.home}\n"


def test_commands_run_in_the_current_folder(checkout: Checkout) -> None:
    assert checkout.result("demo", cwd=Path("/"))[1] == "splitrelay demo in /\n"


def test_exit_codes_pass_through(checkout: Checkout) -> None:
    assert checkout.result("wrong")[0] == 2


def test_tests_are_linted_and_typed_and_take_arguments(checkout: Checkout, shell: str) -> None:
    code, out, _ = checkout.result("test", "-k", "a b", shell=shell)
    assert code == 0
    assert [line.removesuffix(f" in {checkout.root}") for line in out.splitlines()] == [
        "ruff check .",
        "ruff format --check --quiet .",
        f"pytest -m pytest --numprocesses {(os.cpu_count() or 1) + 1} --dist worksteal -k a b",
    ]
    assert (checkout.root / ".venv/mypy.txt").read_text() == f"mypy in {checkout.root}\n"


def test_caches_lie_in_the_environment_where_none_may_lie_next_to_sources(checkout: Checkout) -> None:
    checkout.result()
    script(checkout.root / ".venv/bin/splitrelay", "#!/bin/sh\nenv\n")
    plain, moved = (checkout.result(**extra)[1] for extra in ({}, {"PYTHONDONTWRITEBYTECODE": "1"}))
    assert "PYTHONPYCACHEPREFIX" not in plain
    assert f"PYTHONPYCACHEPREFIX={checkout.root}/.venv/caches\n" in moved and "DONTWRITE" not in moved


def test_an_error_of_mypy_is_shown_and_fails_the_tests(checkout: Checkout) -> None:
    checkout.result("test")
    script(checkout.root / ".venv/bin/mypy", "#!/bin/sh\necho wrong type\nexit 1\n")
    code, out, err = checkout.result("test")
    assert code == 1 and out.endswith("wrong type\n") and err.startswith("go: mypy")


def test_failing_tests_fail(checkout: Checkout) -> None:
    checkout.result("test")
    script(checkout.root / ".venv/bin/python", '#!/bin/sh\n[ "$2" != pytest ] || exit 5\n')
    assert checkout.result("test")[0] == 5


def test_ci_runs_the_tests_and_nothing_else(checkout: Checkout) -> None:
    expected = checkout.result("test")[1]
    run = subprocess.run(
        [".ci/run"], cwd=checkout.root, env=checkout.environment(), capture_output=True, text=True, check=True
    )
    assert (run.stdout, run.stderr) == (expected, "")


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", "go", f"{KERNELS}/native/engine.cpp"])
def test_a_change_in_what_it_was_made_from_is_noticed(checkout: Checkout, name: str) -> None:
    checkout.result()
    with (checkout.root / name).open("a") as file:
        file.write("# changed\n")
    checkout.result()
    assert checkout.set_ups == 2


def test_a_moved_checkout_is_noticed(checkout: Checkout) -> None:
    checkout.result()
    moved = replace(checkout, root=checkout.home / "elsewhere")
    checkout.root.rename(moved.root)
    assert moved.result()[0] == 0
    assert moved.set_ups == 2


def test_another_way_to_the_same_folder_is_no_move(checkout: Checkout) -> None:
    checkout.result()
    link = replace(checkout, root=checkout.home / "link")
    link.root.symlink_to(checkout.root)
    assert link.result()[0] == 0
    assert link.set_ups == 1


def test_a_python_that_was_taken_away_is_noticed(checkout: Checkout) -> None:
    checkout.result()
    (checkout.root / ".venv/bin/python").unlink()
    assert checkout.result()[0] == 0
    assert checkout.set_ups == 2


def test_another_python_is_used_when_asked_for_and_kept_when_not(checkout: Checkout) -> None:
    other = script(checkout.home / "other python", FAKE_PYTHON)
    counts = []
    for asked in ["", str(other), str(other), ""]:
        assert checkout.result(PYTHON=asked)[0] == 0
        counts.append(checkout.set_ups)
    assert counts == [1, 2, 2, 2]


@pytest.mark.parametrize("whole", [True, False], ids=["all of it", "the script alone"])
def test_a_killed_set_up_is_redone(checkout: Checkout, gate: Gate, whole: bool) -> None:
    first = checkout.go(GATE=str(gate.folder))
    gate.arrived()
    (os.killpg if whole else os.kill)(first.pid, signal.SIGKILL)
    assert first.wait(DEADLINE) == -signal.SIGKILL
    second = checkout.go("demo")
    if not whole:  # the pip of the first one still runs, so the second must not change .venv yet
        assert second.stderr is not None and second.stderr.readline() == WAITING
        assert checkout.set_ups == 1
        gate.open()
    code, out, _ = ended(second)
    assert (code, out, checkout.set_ups) == (0, f"splitrelay demo in {checkout.home}\n", 2)
    ended(first)


def test_two_set_ups_at_once_make_one_environment(checkout: Checkout, gate: Gate, shell: str) -> None:
    first = checkout.go("one", shell=shell, GATE=str(gate.folder))
    gate.arrived()
    second = checkout.go("two", shell=shell)
    assert second.stderr is not None and second.stderr.readline() == WAITING
    gate.open()
    assert ended(first)[:2] == (0, f"splitrelay one in {checkout.home}\n")
    assert ended(second) == (0, f"splitrelay two in {checkout.home}\n", "")
    assert checkout.set_ups == 1


def test_ctrl_c_stops_the_set_up(checkout: Checkout, gate: Gate, shell: str) -> None:
    script(checkout.tools / "uv", PATIENT_UV)
    process = checkout.go("demo", shell=shell, GATE=str(gate.folder))
    gate.arrived()
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = ended(process)
    assert (code, out, checkout.set_ups) == (130, "", 0)
    assert err.startswith("go: setting up") and err.count("\n") == 1


def test_where_uv_fails_pip_is_tried(checkout: Checkout) -> None:
    script(checkout.tools / "uv", FAKE_UV)
    code, _, err = checkout.result()
    assert (code, err.splitlines()[-1], checkout.set_ups) == (0, "go: uv could not do it; trying pip", 1)


def test_uv_can_be_left_aside(checkout: Checkout) -> None:
    script(checkout.tools / "uv", FAKE_UV)
    assert checkout.result(GO_NO_UV="1")[0] == 0
    assert "uv: " not in checkout.log and checkout.set_ups == 1


def test_uv_gets_the_settings_of_pip_and_other_programs_do_not(checkout: Checkout) -> None:
    script(checkout.tools / "uv", FAKE_UV)
    (checkout.home / "pip-settings").write_text(
        ":env:.find-links='here there'\n"
        "download.find-links='no'\n"
        "global.cert='/a certificate'\n"
        "global.extra-index-url='\\nhttps://a.example\\nhttps://b.example'\n"
        "global.find-links='no'\n"
        "global.index-url='https://no.example'\n"
        "install.index-url='https://c.example'\n"
    )
    _, out, _ = checkout.result(UV_DEFAULT_INDEX="https://mine.example")
    settings = {line.removeprefix("uv: ") for line in checkout.log.splitlines() if line.startswith("uv: ")}
    assert settings == {
        "UV_FIND_LINKS=here,there",
        "UV_INDEX=https://a.example https://b.example",
        "UV_DEFAULT_INDEX=https://mine.example",
        "SSL_CERT_FILE=/a certificate",
        "UV_SYSTEM_CERTS=1",
        "UV_INDEX_STRATEGY=unsafe-best-match",
    }
    assert "example" not in out


def test_uv_picks_the_torch_that_suits_the_machine_unless_pip_was_given_a_folder_of_wheels(checkout: Checkout) -> None:
    script(checkout.tools / "uv", FAKE_UV)
    checkout.result()
    assert "uv: UV_TORCH_BACKEND=auto\n" in checkout.log


def test_an_environment_of_somebody_else_is_kept(checkout: Checkout) -> None:
    (checkout.root / ".venv").mkdir()
    (checkout.root / ".venv/mine").touch()
    code, _, err = checkout.result()
    assert code == 0
    assert err.startswith("go: .venv was not made by this script; kept as .venv.")
    assert len(list(checkout.root.glob(".venv.*/mine"))) == 1


def refusal(result: tuple[int, str, str]) -> str:
    code, out, err = result
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err


def test_an_old_python_asked_for_is_refused_in_one_line(checkout: Checkout, shell: str) -> None:
    old = script(checkout.home / "old", OLD_PYTHON)
    expected = f"go: needs Python 3.11 or newer; PYTHON={old} is Python 3.10.13. Name another, or unset PYTHON.\n"
    assert refusal(checkout.result(shell=shell, PYTHON=str(old))) == expected


def test_a_newer_python_is_found_beside_an_old_one(checkout: Checkout) -> None:
    (checkout.tools / "python3").rename(checkout.tools / "python3.12")
    script(checkout.tools / "python3", OLD_PYTHON)
    assert checkout.result()[0] == 0


def test_no_python_is_one_line(checkout: Checkout) -> None:
    (checkout.tools / "python3").unlink()
    assert "; python3 is missing. Install one, or name it: PYTHON=" in refusal(checkout.result())


def test_no_pip_is_one_line(checkout: Checkout) -> None:
    assert "apt install python3-pip" in refusal(checkout.result(NO_PIP="1"))


def test_a_link_to_the_script_is_refused(checkout: Checkout) -> None:
    link = replace(checkout, root=checkout.home / "bin")
    link.root.mkdir()
    (link.root / "go").symlink_to(checkout.root / "go")
    assert "Call go by its own path" in refusal(link.result())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_one_line(checkout: Checkout) -> None:
    checkout.root.chmod(0o555)
    assert "Clone into a folder of your own" in refusal(checkout.result())
    checkout.root.chmod(0o755)


def test_shellcheck_has_no_complaint() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck here")
    checked = subprocess.run(["shellcheck", "go", ".ci/run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.stdout == ""
