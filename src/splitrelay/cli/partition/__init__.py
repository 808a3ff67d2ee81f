"""`splitrelay partition`: divide a training set among clients."""

from __future__ import annotations

import click

from splitrelay.cli.click_extensions import Group

COMMANDS = {
    name: (f"splitrelay.cli.partition.commands:{name}", text)
    for name, text in {
        "exdir": "The paper's ExDir(C, alpha): C classes a client, then Dirichlet.",
        "iid": "M random parts of equal size.",
        "dirichlet": "Every class to all clients by Dirichlet(alpha).",
        "pathological": "C classes a client, in equal shares.",
        "shards": "Pieces of the set sorted by label.",
        "panels": "The paper's twelve panels of ExDir in one figure.",
        "show": "Report on a saved partition, ours or the authors'.",
        "export": "One folder per client, for a real deployment.",
    }.items()
}


@click.group(
    cls=Group,
    lazy=COMMANDS,
    name="partition",
    epilog="Example: splitrelay partition exdir data=digits M=10 C=2 alpha=10 --out p.json",
)
def partition() -> None:
    """Divide a training set among M clients, display the partition, save it, or export the data of each client.

    Every sample belongs to exactly one client. A data set that is not on this machine is downloaded.
    """
