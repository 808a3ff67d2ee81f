"""`splitrelay theory ...`: what the paper proves, in numbers."""

from __future__ import annotations

import click

from splitrelay.cli.click_extensions import Group

COMMANDS = {
    "bound": ("splitrelay.cli.theory.bound:bound", "The bound of a theorem, term by term, or why it does not apply."),
    "rate": ("splitrelay.cli.theory.rate:rate", "Orders of convergence: Corollary 1, Table 1, and what they rest on."),
    "stepsize": ("splitrelay.cli.theory.stepsize:stepsize", "The step by three rules, and the bound each gives."),
    "compare": ("splitrelay.cli.theory.compare:compare", "SSL against FedAvg: at equal rounds and at equal compute."),
    "weights": ("splitrelay.cli.theory.weights:weights", "The weights w_r of the averaged output, without overflow."),
    "last-iterate": ("splitrelay.cli.theory.bound:last_iterate", "A bound on the last iterate, without averaging."),
    "lemmas": ("splitrelay.cli.theory.lemmas:lemmas", "The lemmas behind the theorems, as numbers."),
    "errata": ("splitrelay.cli.theory.errata:errata", "What the paper misprints, and the counter-examples."),
    "check": ("splitrelay.cli.theory.check:check", "The bounds against exact expectations on random quadratics."),
}


@click.group(
    cls=Group,
    lazy=COMMANDS,
    name="theory",
    epilog="Example: splitrelay theory stepsize ssl strongly-convex L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 R=1000 D2=1",
)
def theory() -> None:
    """The paper's theory as a calculator: numbers in, numbers out.

    Quantities are given as key=value. A value may be a list (K=1,5,20) or a range (R=100:1e6, R=100:1e6:log,
    R=100:1e6:log:50), and then every combination is answered.
    """
