"""The command `splitrelay`: its subcommands in groups, global flags, exit codes, and one line for every error."""

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
from splitrelay.cli.console import STOPPED, mood
from splitrelay.errors import SplitrelayError, find_user_code
from splitrelay.runs.presets import set_preset_provider

set_preset_provider("splitrelay.paper.presets")

# Group, then command: (module:attribute, one line of help). A module is imported only when its command is called.
COMMAND_GROUPS = {
    "Start here": {
        "demo": ("demo:demo", "Train SSL and FedAvg on real digits and compare them, in a minute."),
        "new": ("new:new", "Write a commented spec that runs in seconds."),
        "run": ("run:run", "Train one spec on images: any algorithm, model, partition."),
        "show": ("show:show", "Show a run or a folder of runs: settings, progress, accuracy."),
    },
    "Train": {
        "sweep": ("sweep:sweep", "Run every combination of values, on all cores or on a cluster."),
        "grid": ("grid:grid", "Find the best learning rate."),
        "data": ("data:data", "List, download and check data sets."),
        "partition": ("partition:partition", "Divide a training set among M clients, show it, export it."),
        "model": ("model:model", "Show a model layer by layer, and what each cut sends."),
        "cost": ("cost:cost", "Show what a visit costs a client: bytes, messages, FLOPs, for each cut."),
    },
    "Results": {
        "table": ("table:table", "Make tables of runs: accuracy, best rates, one row per run."),
        "figure": ("figure:figure", "Make figures of runs: curves, clipping, rates, bytes."),
        "page": ("page:page", "Show runs and deployed runs live in the browser."),
        "report": ("report:report", "Make one HTML page of a run or a folder of runs."),
        "track": ("track:track", "Copy rows to TensorBoard, MLflow or Weights & Biases."),
        "evaluate": ("evaluate:evaluate", "Evaluate a saved model on a data set."),
        "compare": ("verify:compare", "Compare two runs: settings, rows, final models."),
        "verify": ("verify:verify", "Run a run again and compare it bit by bit."),
        "publish": ("publish:publish", "Copy records of runs, without weights, for others to verify."),
    },
    "Theory": {
        "theory": ("theory:theory", "Compute the paper's bounds, rates and step sizes."),
        "notation": ("notation:notation", "List the paper's symbols and our names for them."),
    },
    "Paper": {
        "reproduce": ("reproduce:reproduce", "Repeat the paper's studies and compare the numbers."),
        "presets": ("new:presets", "List the settings of the paper by name."),
        "quadratics": ("quadratics:quadratics", "Repeat the paper's simulations on quadratics."),
        "convex": ("convex:convex", "Train softmax regression and compare it with the theorems' bounds."),
    },
    "Deploy": {
        "rehearse": ("rehearse:rehearse", "Deploy a run on this machine and compare it with the simulation."),
        "keys": ("keys:keys", "Create and revoke the certificates of the participants."),
        "serve": ("serve:serve", "Run the server of a run whose clients are on other hosts."),
        "join": ("join:join", "Run a client of such a run, with its own data."),
        "status": ("status:status", "Show how far a deployed run is."),
        "quarantine": ("quarantine:quarantine", "List and release misbehaving clients of a deployed run."),
        "collect": ("status:collect", "Download the final model of a deployed run."),
    },
    "Machine": {
        "doctor": ("doctor:doctor", "Show CPU, engines and speed of this machine."),
        "completion": ("completion:completion", "Print the completion script of your shell."),
    },
}
COMMANDS = {
    name: (f"splitrelay.cli.{place}", line)
    for group in COMMAND_GROUPS.values()
    for name, (place, line) in group.items()
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
    sections={title: list(group) for title, group in COMMAND_GROUPS.items()},
    name="splitrelay",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: splitrelay demo",
)
@click.version_option(__version__, prog_name="splitrelay")
@click.option("-q", "--quiet", is_flag=True, help="Print results only: no notes, no progress.")
@click.option("-v", "--verbose", is_flag=True, help="Print more details.")
@click.option("--traceback", is_flag=True, help="Print the traceback of an error.")
def app(quiet: bool, verbose: bool, traceback: bool) -> None:
    """New here? Type: splitrelay demo

    Then "splitrelay new first" writes a spec, and "splitrelay run first.toml" trains it. Splitrelay simulates and
    deploys sequential split learning, and computes its theory. -q, -v and --traceback may be anywhere on the line.
    """


def run(argv: Sequence[str] | None = None, context: object = None) -> NoReturn:
    """Run one command line and exit: 0 success, 1 failed work, 2 wrong input, 130 stopped (Ctrl-C, SIGTERM).

    Args:
        argv: the words of the command line; those of this process unless given.
        context: an object for the command that is not an option, such as the Timeouts of a rehearsal.
    """
    try:
        _execute(_take_flags(list(sys.argv[1:] if argv is None else argv)), context)
    finally:
        mood.quiet = mood.verbose = mood.traceback = False  # they hold for one command line


def _execute(arguments: list[str], context: object) -> NoReturn:
    # The form of --log is needed before the command line is parsed, which may fail.
    words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    form = "json" if "--log=json" in words or ("--log", "json") in pairwise(words) else "lines"
    try:
        app.main(arguments, prog_name="splitrelay", standalone_mode=False, obj=context)
    except (KeyboardInterrupt, click.Abort):
        _leave("stopped.", STOPPED, form)
    except BrokenPipeError:  # `splitrelay ... | head` closes the pipe, which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        _leave(*explain_error(error), form, format_exc() if mood.traceback else "")
    sys.exit(0)


def explain_error(error: Exception) -> tuple[str, int]:
    """Return the message and the exit code of an error. An error in a file of the user is named as such."""
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
    place = find_user_code(error)
    if place:
        return f"error in your code, {place}: {type(error).__name__}: {error}. --traceback shows all calls.", 1
    return f"unexpected {type(error).__name__}: {error}. Please report it with the output of --traceback.", 1


def _leave(message: str, code: int, form: str, trace: str = "") -> NoReturn:
    """Print the final message as text, or as an object with --log json, and exit with this code."""
    one_line = message if code == 2 and message.startswith("Usage:") else " ".join(message.split())
    if form == "json":
        from splitrelay.cli.deploy_options import build_alarm

        build_alarm(form, who="splitrelay", **({"traceback": trace} if trace else {}))(one_line)
    else:
        click.echo(trace + (one_line if one_line.startswith("Usage:") else f"splitrelay: {one_line}"), err=True)
    sys.exit(code)


def _take_flags(arguments: list[str]) -> list[str]:
    """Remove -q, -v and --traceback, which may be anywhere on the line, and set them."""
    rest: list[str] = []
    for position, word in enumerate(arguments):
        if word == "--":
            return rest + arguments[position:]
        if word in FLAGS:
            setattr(mood, FLAGS[word], True)
        else:
            rest.append(word)
    return rest
