"""`splitrelay partition ...`: who holds what."""

from __future__ import annotations

import click

from splitrelay.cli.click_extensions import Group

COMMANDS = {
    "exdir": (
        "splitrelay.cli.partition.schemes:exdir",
        "The paper's ExDir(C, alpha): C classes a client, then Dirichlet.",
    ),
    "iid": ("splitrelay.cli.partition.schemes:iid", "M random parts of equal size."),
    "dirichlet": ("splitrelay.cli.partition.schemes:dirichlet", "Every class to all clients by Dirichlet(alpha)."),
    "pathological": ("splitrelay.cli.partition.schemes:pathological", "C classes a client, in equal shares."),
    "shards": ("splitrelay.cli.partition.schemes:shards", "Pieces of the set sorted by label."),
    "panels": ("splitrelay.cli.partition.panels:panels", "The paper's twelve panels of ExDir in one figure."),
    "show": ("splitrelay.cli.partition.saved:show", "Report on a saved partition, ours or the authors'."),
    "export": ("splitrelay.cli.partition.saved:export", "One folder per client, for a real deployment."),
}


@click.group(
    cls=Group,
    lazy=COMMANDS,
    name="partition",
    epilog="Example: splitrelay partition exdir data=digits M=10 C=2 alpha=10 --out p.json",
)
def partition() -> None:
    """Deal a training set to M clients, every sample exactly once; look at it, save it, hand it out.

    A data set that is not here is fetched. What is dealt are positions in its training set.
    """
