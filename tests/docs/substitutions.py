"""What is run in place of what is shown, and why: the one list of all departures of the tests from the pages.

Every command line of a page, of a --help and of the README goes through `instead`, then is run. A row that no line
needs any more fails a test (test_substitutions.py).
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Row:
    """Where `pattern` is found in a line, `instead` stands in its place; `why` is the reason."""

    pattern: str
    instead: str
    why: str


CHECKOUT = (
    Row(r"^\./go test\b(?: -x)?", "ls", "tests do not run tests: what is named must be there; test_go.py has ./go"),
    Row(r"^ls (.*) -x$", r"ls \1", "an option of pytest, no file"),
    Row(r"^\./go (?=[a-z])", "splitrelay ", "./go makes .venv; test_go.py holds it to handing on all else"),
    Row(r"^time ", "", "the clock is for the reader"),
    Row(r"--from evidence\b", f"--from {ROOT}/evidence", "the commands of a page run in a folder of their own"),
    Row(r"(reproduce --from \S+)$", r"\1 --out results/evidence", "the tables of docs/reproduce.md, computed once"),
)
SETS = (
    Row(r"data (get|path) mnist$", r"data \1 digits", "the one set that needs no network"),
    Row(r"(run data=)cifar10 model=vgg11", r"\1digits", "a look at 10,000 images takes VGG-11 half a minute"),
    Row(r"(convex data=)mnist", r"\1digits", "60,000 images take minutes"),
)
ROUNDS = (
    Row(r"(run data=mnist .*)R=100 every=5", r"\1R=2", "a minute each"),
    Row(r"(run preset=\S+ algorithm=\w+)$", r"\1 R=1 --out preset", "the paper's 1000 rounds"),
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
        "plans by the hundred",
    ),
    Row(
        r"(rehearse) (algorithm=\w+ placement=cut --fed-server --out) DIR", r"\1 M=2 C=5 K=1 R=1 \2 fed", "12 programs"
    ),
    Row(r"(rehearse) (--out \w+)$", r"\1 first.toml \2", "the starter spec has the default of every key"),
    Row(
        r"(rehearse first.toml)( R=3)?( route=\S+)?( --out)",
        r"\1 M=4 C=5 K=1 R=3 --hosts 1\3\4",
        "11 programs",
    ),
    Row(r"s\.example\.org:7443", "127.0.0.1:PORT", "a host that everybody has"),
    Row(
        r"^(splitrelay serve \S+)(.*?)(?: --listen \S+)?( --out .*)?$",
        r"\1\2 --listen 127.0.0.1:0 --port-file port\3",
        "a port that is free",
    ),
    Row(r"--watch$", "--watch --every 0.1", "two seconds between two looks are long here"),
)
NUMBERS = (
    Row(r"(tests\.fuzz) 1000000 10000", r"\1 1000 50", "a million frames take minutes; tests/fuzz sends some"),
    Row(r"(malicious_server) 10000", r"\1 14", "10000 conversations take an hour; tests/fuzz has some"),
    Row(r"(random_nets\.py) (300|60)", r"\1 3", "300 nets take minutes; tests/kernels checks some"),
    Row(
        r"^python -m benchmarks$",
        "python -m benchmarks ground",
        "the first of them; the others have lines of their own",
    ),
    Row(
        r"^python -m benchmarks (learning|kernels|runs)$",
        r"""python -c 'from benchmarks import __main__, \1; assert "\1" in __main__.NAMES; \1.rows()'""",
        "minutes, on an idle machine; the rows are made one by one, and none is asked for",
    ),
    Row(
        r"^python -m (benchmarks\.(?:wire|kills))( 100| reference| fast| reference fast)?$",
        r"python -c 'import \1'",
        "minutes; tests/laws kills some",
    ),
    Row(
        r"^(python -m (?:splitrelay\.kernels\.build|benchmarks\.profile_kernels))( lenet5)?( 20)?$",
        r"\1 --help",
        "compiling takes a core many seconds, and the set-up of this environment has done it",
    ),
)
ROWS = (*CHECKOUT, *SETS, *ROUNDS, *PROGRAMS, *NUMBERS)

TOGETHER = r"splitrelay (serve|join|status|collect|rehearse)\b"  # test_programs.py runs them, as processes

DEAR = r"splitrelay (demo|doctor|quadratics|reproduce|grid)\b|python "  # run once, wherever they stand

UNTIL = {  # long programs: a real process, until it prints a line like this; then it is stopped
    r"splitrelay demo$": (r" 1/\d+ ", "a minute on all cores"),
    r"python -m benchmarks ground$": (r" \d+\.\dx ", "minutes, on an idle machine"),
}

NOT_RUN = {
    r"(./go|splitrelay) ANYTHING$|.*\b(DIR/|RUN$|NAME$|CELL$|key=value)": "a form, not a command",
    r"pip install ": "it would change the environment that runs the tests; test_pages.py looks the extras up",
    r"python tests/kernels/crossed\.py": "it needs zig and an emulator of other processors",
    r"splitrelay rehearse .*--namespaces": "it needs root",
    r"python .* --sanitize |LD_PRELOAD=": "it compiles for a minute; for developers of kernels",
    r"splitrelay (sweep|run) spec\.toml .*\bray\b": "Ray takes half a minute to start: `./go test tests/cluster`",
}


def instead(line: str) -> str:
    """The line that is run."""
    for row in ROWS:
        line = re.sub(row.pattern, row.instead, line)
    return line


def why_not(line: str) -> str | None:
    """Why a line is not run; None if it is."""
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, line)), None)
