"""The front door: flags that hold everywhere, exit codes, one line for every error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from traceback import format_exc
from typing import NoReturn

import click

from splitrelay import __version__
from splitrelay.cli.click_extensions import Group
from splitrelay.cli.console import mood
from splitrelay.errors import SplitrelayError
from splitrelay.runs.presets import set_preset_provider

set_preset_provider("splitrelay.paper.presets")

COMMANDS = {
    "demo": ("splitrelay.cli.demo:demo", "See it work: SSL against FedAvg on real digits, in a minute."),
    "theory": ("splitrelay.cli.theory:theory", "The paper's theory as a calculator: bounds, rates, step sizes."),
    "quadratics": (
        "splitrelay.cli.quadratics:quadratics",
        "The paper's simulations on quadratics, beside their exact values.",
    ),
    "convex": ("splitrelay.cli.convex:convex", "Softmax regression on real data, beside the theorems' bounds."),
    "data": ("splitrelay.cli.data:data", "Data sets: list, get, check, path."),
    "partition": (
        "splitrelay.cli.partition:partition",
        "Deal a training set to M clients; look at it, save it, hand it out.",
    ),
    "new": ("splitrelay.cli.new:new", "Write a commented spec that runs as it is."),
    "presets": ("splitrelay.cli.new:presets", "The settings of the paper, by name."),
    "run": ("splitrelay.cli.run:run", "Train on images: any algorithm, model, partition."),
    "show": ("splitrelay.cli.show:show", "A run, or a folder of runs, at one look."),
    "reproduce": ("splitrelay.cli.reproduce:reproduce", "The paper's studies again, beside its own numbers."),
    "publish": ("splitrelay.cli.publish:publish", "Records to hand out, without weights."),
    "verify": ("splitrelay.cli.verify:verify", "Run a run again and compare to the bit."),
    "compare": ("splitrelay.cli.verify:compare", "Two runs side by side."),
    "sweep": ("splitrelay.cli.sweep:sweep", "Run every combination of the given values, on all cores or a cluster."),
    "grid": ("splitrelay.cli.grid:grid", "Find the best learning rate by a named rule."),
    "evaluate": ("splitrelay.cli.evaluate:evaluate", "Score a saved model on a data set."),
    "table": ("splitrelay.cli.table:table", "Runs as tables: accuracy as in the paper, best rates, one row a run."),
    "figure": ("splitrelay.cli.figure:figure", "Runs as figures: curves, clipping, rates, bytes."),
    "report": ("splitrelay.cli.report:report", "A run, or a folder of them, as one page that opens offline."),
    "model": ("splitrelay.cli.model:model", "A model layer by layer, and what each cut sends."),
    "keys": ("splitrelay.cli.keys:keys", "Who may take part: authority, certificates, revocation."),
    "serve": ("splitrelay.cli.serve:serve", "The server of a run whose clients are on other hosts."),
    "join": ("splitrelay.cli.join:join", "A client of such a run, with its own data."),
    "rehearse": ("splitrelay.cli.rehearse:rehearse", "Deploy a run here, and compare it with the simulation."),
    "status": ("splitrelay.cli.status:status", "How a deployed run goes: who is here, whose turn, how long still."),
    "quarantine": ("splitrelay.cli.quarantine:quarantine", "Clients of a deployed run that misbehave: list, release."),
    "collect": ("splitrelay.cli.status:collect", "The final model of a deployed run."),
    "cost": ("splitrelay.cli.cost:cost", "What a client pays for a visit: bytes, messages, FLOPs, cut by cut."),
    "doctor": ("splitrelay.cli.doctor:doctor", "What this machine can do: CPU, engines, threads, speed."),
    "notation": ("splitrelay.cli.notation:notation", "The paper's symbols beside our names."),
    "completion": ("splitrelay.cli.completion:completion", "Print the completion script of your shell."),
}

FLAGS = {
    "-q": "quiet",
    "--quiet": "quiet",
    "-v": "verbose",
    "--verbose": "verbose",
    "--traceback": "traceback",
}


@click.group(
    cls=Group,
    lazy=COMMANDS,
    name="splitrelay",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: splitrelay demo",
)
@click.version_option(__version__, prog_name="splitrelay")
@click.option("-q", "--quiet", is_flag=True, help="Results only: no notes, no progress.")
@click.option("-v", "--verbose", is_flag=True, help="Say more on the way.")
@click.option("--traceback", is_flag=True, help="Show where an error came from.")
def app(quiet: bool, verbose: bool, traceback: bool) -> None:
    """Sequential split learning: its theory as a calculator, its algorithms as readable code.

    -q, -v and --traceback may stand anywhere on the line.
    """


def run(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command line and leave with its exit code: 2 wrong input, 1 failed work, 130 Ctrl-C."""
    try:
        _run(_take_flags(list(sys.argv[1:] if argv is None else argv)))
    finally:
        mood.quiet = mood.verbose = mood.traceback = False  # they hold for one command line


def _run(arguments: list[str]) -> NoReturn:
    form = _log_form(arguments)
    try:
        app.main(arguments, prog_name="splitrelay", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        _leave("stopped.", 130, form)
    except BrokenPipeError:  # `splitrelay ... | head`: nobody reads on, and that is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        _leave(*_explained(error), form, format_exc() if mood.traceback else "")
    sys.exit(0)


def _explained(error: Exception) -> tuple[str, int]:
    if isinstance(error, SplitrelayError):
        return str(error), error.exit_code
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message(), 2
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "splitrelay"
        return f"{error.format_message().rstrip('.')}. See: {where} --help".replace("?.", "?"), 2
    if isinstance(error, click.ClickException):
        return error.format_message(), 2
    if isinstance(error, MemoryError):
        return f"out of memory ({error}). Ask for less at once.", 1
    return f"unexpected {type(error).__name__}: {error}. Please report it with the output of --traceback.", 1


def _leave(message: str, code: int, form: str, trace: str = "") -> NoReturn:
    """With the last line: for people, or an object among the others of --log json."""
    one_line = message if code == 2 and message.startswith("Usage:") else " ".join(message.split())
    if form == "json":
        from splitrelay.cli.deploy_options import alarm

        alarm(form, who="splitrelay", **({"traceback": trace} if trace else {}))(one_line)
    else:
        click.echo(trace + (one_line if one_line.startswith("Usage:") else f"splitrelay: {one_line}"), err=True)
    sys.exit(code)


def _log_form(arguments: list[str]) -> str:
    """How --log wants it, read before the command is: its options may be the error."""
    words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "json" if "--log=json" in words or ("--log", "json") in pairwise(words) else "lines"


def _take_flags(arguments: list[str]) -> list[str]:
    """-q, -v and --traceback hold wherever they stand."""
    rest: list[str] = []
    for position, word in enumerate(arguments):
        if word == "--":
            return rest + arguments[position:]
        if word in FLAGS:
            setattr(mood, FLAGS[word], True)
        else:
            rest.append(word)
    return rest
