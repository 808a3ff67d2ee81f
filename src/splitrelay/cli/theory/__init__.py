"""`splitrelay theory`: the paper's theory as a calculator."""

from __future__ import annotations

import click

from splitrelay.cli.click_extensions import Group

COMMANDS = {
    "bound": ("splitrelay.cli.theory.bound:bound", "Compute the bound of a theorem, term by term."),
    "rate": ("splitrelay.cli.theory.rate:rate", "Compute orders of convergence: Corollary 1, Table 1, and others."),
    "stepsize": (
        "splitrelay.cli.theory.stepsize:stepsize",
        "Choose the step by three rules, and compute the bound at each.",
    ),
    "compare": (
        "splitrelay.cli.theory.compare:compare",
        "Compare SSL and FedAvg at equal rounds and at equal compute.",
    ),
    "rounds": (
        "splitrelay.cli.theory.rounds:rounds",
        "Compute the rounds to reach an accuracy, or the accuracy of R rounds.",
    ),
    "weights": ("splitrelay.cli.theory.weights:weights", "Compute the weights w_r of the averaged output for any R."),
    "last-iterate": (
        "splitrelay.cli.theory.bound:last_iterate",
        "Bound the error of the last iterate, without averaging.",
    ),
    "lemmas": ("splitrelay.cli.theory.lemmas:lemmas", "Evaluate the lemmas behind the theorems."),
    "errata": ("splitrelay.cli.theory.errata:errata", "List the errors in the paper, with counterexamples."),
    "check": ("splitrelay.cli.theory.check:check", "Check the bounds against exact expectations on random problems."),
}


@click.group(
    cls=Group,
    lazy=COMMANDS,
    name="theory",
    epilog="Example: splitrelay theory stepsize ssl strongly-convex L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 R=1000 D2=1",
)
def theory() -> None:
    """Evaluate the paper's theorems for your numbers.

    Give quantities as key=value. A value may be a list (K=1,5,20) or a range (R=100:1e6, R=100:1e6:log,
    R=100:1e6:log:50). The commands then compute every combination.
    """
