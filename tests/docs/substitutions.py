"""List all differences between the commands that the pages show and the commands that the tests run.

`instead` maps every command line of a page, of a --help and of the README to the line that the tests run. Each row has
a reason. A test (test_pages.py) fails if no line needs a row any more.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Row:
    """Replace `pattern` in a line by `instead`; `why` is the reason."""

    pattern: str
    instead: str
    why: str


CHECKOUT = (
    Row(
        r"^\./go test\b(?: -x)?",
        "ls",
        "tests do not run tests: check that the named files exist; test_go.py tests ./go",
    ),
    Row(r"^\./go docs$", "python -m sphinx --version", "test_pages.py builds the site"),
    Row(r"^python -m pytest -q (?=tests/)", "ls ", "tests do not run tests: check that the named files exist"),
    Row(r"^ls (.*) -x$", r"ls \1", "-x is an option of pytest, not a file"),
    Row(r"^\./go (?=[a-z])", "splitrelay ", "./go creates .venv; test_go.py tests that it passes other commands on"),
    Row(r"^time ", "", "the tests need no timing"),
    Row(r"--from evidence\b", f"--from {ROOT}/evidence", "the commands of a page run in their own folder"),
    Row(r"(reproduce --from \S+)(?: --out \S+)?$", r"\1 --help", "test_generated_tables.py runs it"),
)
SETS = (
    Row(r"data (get|path) mnist$", r"data \1 digits", "the only data set that needs no network"),
    Row(r"(run data=)cifar10 model=vgg11", r"\1digits", "VGG-11 evaluates 10,000 images in half a minute"),
    Row(r"(convex data=)mnist", r"\1digits", "60,000 images take minutes"),
)
ROUNDS = (
    Row(r"(run data=mnist .*)R=100 every=5", r"\1R=2", "a minute each"),
    Row(r"(run preset=\S+ algorithm=\w+)$", r"\1 R=1 --out preset", "the paper's 1000 rounds"),
    Row(r"(reproduce cross-device-mnist-c2-k10)$", r"\1 --plan", "docs/experiments.md shows that a cell runs"),
    Row(r"(reproduce cross-device-\S+)", r"\1 R=1 --seeds 1 --jobs 1", "the paper's 1000 rounds, three times"),
    Row(r"(reproduce cross-device-\S+ .*cross-device-\S+)$", r"\1 --plan", "hours"),
    Row(r"(reproduce (?:reasons|clipping|cuts|vgg11))$", r"\1 --plan", "minutes to hours"),
    Row(r"(reproduce (?:tuned|silos|family|cnncifar|landscape))$", r"\1 --plan", "minutes to hours"),
    Row(r"(reproduce cross-device --budget 2h)", r"\1 --plan", "it would take the two hours"),
    Row(r"(convex data=digits)$", r"\1 C=1 R=10 points=1 eta=.1", "a minute and a half"),
    Row(r"(convex data=digits) C=1,10 R=20$", r"\1 C=1 R=9 points=1 eta=.1", "some seconds"),
    Row(r"(convex data=digits batch=full) C=1,10 R=300", r"\1 C=1 R=10 points=1 eta=.1", "a minute"),
    Row(r"(convex data=digits) R=300 points=10 eta=\S+", r"\1 C=1 R=10 points=1 eta=.1", "minutes"),
    Row(r"(grid data=digits C=1) R=25(.*) eta=\S+", r"\1 R=1\2 eta=0.03,0.1", "12 s on both cores"),
    Row(
        r"^(splitrelay (?:sweep|grid) data=(?:digits|own\.npz M=5 C=1 R=3) .*)$",
        r"\1 --jobs 1",
        "a second process takes seconds to start",
    ),
)
PROGRAMS = (
    Row(
        r"rehearse (?:\S+ )*?((?:route=\S+ )?)--out \w+ --random \d+ --plans \d+",
        r"rehearse first.toml M=3 C=4 K=1 R=3 \1--out random --random 1 --plans 1",
        "hundreds of plans take an hour",
    ),
    Row(
        r"(rehearse) (algorithm=\w+ placement=cut --fed-server --out) DIR", r"\1 M=2 C=5 K=1 R=1 \2 fed", "12 programs"
    ),
    Row(r"(rehearse) M=3 C=4 K=4 R=4 (--out DIR)", r"\1 \2", "one rehearsal without faults is enough"),
    Row(r"(rehearse) (--out \w+)$", r"\1 first.toml \2", "the starter spec has the default of every key"),
    Row(
        r"(rehearse first.toml)( R=3)?( route=\S+)?( --out)",
        r"\1 M=4 C=5 K=1 R=3 --hosts 1\3\4",
        "11 programs",
    ),
    Row(r"s\.example\.org:7443", "127.0.0.1:PORT", "a host that exists on every machine"),
    Row(
        r"^(splitrelay serve \S+)(.*?)(?: --listen \S+)?( --out .*)?$",
        r"\1\2 --listen 127.0.0.1:0 --port-file port\3",
        "a free port",
    ),
    Row(r"--watch$", "--watch --every 0.1", "two seconds between two updates are too long for a test"),
)
NUMBERS = (
    Row(r"(examples/reconstruct_images\.py) mnist$", r"\1", "half a minute on real images; the digits take a second"),
    Row(r"(examples/scikit_learn_tables\.py)$", r"\1 --quick", "a minute for five splits"),
    Row(
        r"^python -m tests\.fuzz 1000000 10000", "ls tests/fuzz/__main__.py", "minutes; tests/fuzz runs a small number"
    ),
    Row(
        r"^python -m tests\.fuzz\.malicious_server 10000",
        "ls tests/fuzz/malicious_server.py",
        "10000 conversations take an hour; tests/fuzz runs a small number",
    ),
    Row(r"(random_nets\.py) 300", r"\1 1", "300 nets take minutes; tests/kernels checks some"),
    Row(r"(random_nets\.py) 60", r"\1 1", "60 nets take seconds; tests/kernels checks some"),
    Row(r"(python -m tests\.rehearse_zoo)$", r"\1 --help", "38 deployments take minutes"),
    Row(
        r"^python -m benchmarks$",
        "python -m benchmarks kernels",
        "one part of all benchmarks, which take minutes; the pages also name the others one by one",
    ),
    Row(
        r"^python -m benchmarks (learning|kernels|runs)$",
        r"""python -c 'from benchmarks import __main__, \1; assert "\1" in __main__.NAMES; \1.rows()'""",
        "minutes, on an idle machine; `rows` is a generator, so nothing is measured",
    ),
    Row(
        r"^python -m (benchmarks\.(?:wire|kills))( 100| reference| fast| reference fast)?$",
        r"python -c 'import \1'",
        "minutes; tests/laws kills a few programs",
    ),
    Row(
        r"^python tools/release\.py$",
        "python tools/release.py --help",
        "it installs tools and builds wheels, which takes minutes",
    ),
    Row(
        r"^(python -m (?:splitrelay\.kernels\.build|benchmarks\.profile_kernels))( lenet5)?( 20)?$",
        r"\1 --help",
        "compiling takes many seconds, and ./go has already compiled the kernels",
    ),
)
TRACKERS = (Row(r"(--to tensorboard:\w+),mlflow:\S+,wandb", r"\1", "tests/unit/tracking tests MLflow and W&B"),)
ROWS = (*TRACKERS, *CHECKOUT, *SETS, *ROUNDS, *PROGRAMS, *NUMBERS)

TOGETHER = r"splitrelay (serve|join|status|collect|rehearse)\b"  # test_programs.py runs these as processes

DEAR = r"splitrelay (demo|doctor|quadratics|reproduce|grid)\b|python "  # expensive: run once

UNTIL = {  # long programs: start a process, and stop it when it prints a matching line
    r"splitrelay demo$": (r" 1/\d+ ", "a minute on all cores"),
    r"splitrelay page (?!.*--(?:out|help))": (r"page: http://127", "it serves until Ctrl-C"),
}

NOT_RUN = {
    r"(./go|splitrelay) ANYTHING$|.*\b(DIR/|RUN$|NAME$|CELL$|key=value)": "a pattern, not a command",
    r"pip install ": "it would change the environment of the tests; test_pages.py checks the names of the extras",
    r"python -m tests\.browser\.|\./go test tests/browser": "it needs Chromium and playwright",
    r"python tests/kernels/crossed\.py": "it needs zig and an emulator of other processors",
    r"splitrelay rehearse .*--namespaces": "it needs root",
    r"tools/try_wheels\.sh ": "it needs root and installs fresh systems",
    r"python .* --sanitize |LD_PRELOAD=": "it compiles for a minute; for developers of kernels",
    r"splitrelay (sweep|run) spec\.toml .*\bray\b": "Ray takes half a minute to start: `./go test tests/cluster`",
}


def instead(line: str) -> str:
    """Return the line that the tests run in place of a line of a page."""
    for row in ROWS:
        line = re.sub(row.pattern, row.instead, line)
    return line


def why_not(line: str) -> str | None:
    """Return the reason why a line is not run, or None if it is run."""
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, line)), None)
