"""`splitrelay join`."""

from __future__ import annotations

from pathlib import Path

import click

from splitrelay.cli.console import say
from splitrelay.cli.deployed import Seconds, alarm, log_option, logger, ready, warn_insecure
from splitrelay.cli.interrupts import stopping
from splitrelay.cli.lazy import Command
from splitrelay.errors import InputError

FOLDER = click.Path(path_type=Path)


@click.command(cls=Command, example="splitrelay join s.example.org:7443 --keys hospital-3 --data patients.npz")
@click.argument("address", metavar="HOST:PORT")
@click.option("--keys", multiple=True, type=FOLDER, help="The folder that splitrelay keys issue made for this client.")
@click.option("--data", multiple=True, type=FOLDER, help="This client's images: an .npz, a table, a folder.")
@click.option("--insecure", is_flag=True, help="Without keys or encryption: for tests on one machine.")
@click.option("--client", multiple=True, type=click.IntRange(min=0),
              help="Which client this is, where there are no keys to say it.")  # fmt: skip
@click.option("--spec", type=FOLDER, help="Take part only if the server runs this spec.")
@click.option("--test", type=FOLDER, help="The evaluator's test set, where the route is peer-to-peer.")
@click.option("--keep", type=FOLDER, default=Path("model.safetensors"), show_default=True,
              help="Where the evaluator writes the model.")  # fmt: skip
@click.option("--listen", default="", metavar="HOST:PORT",
              help="Let other clients bring the half here, peer to peer; port 0: any that is free.")  # fmt: skip
@click.option("--fed-server", is_flag=True, help="It averages the clients' halves, and has no data.")
@click.option("--sealed", is_flag=True, help="Take part only if the server cannot read the clients' half.")
@click.option("--check", is_flag=True, help="Everything but training: would the server take this client?")
@click.option("--patience", type=Seconds(0), default=0, show_default=True,
              help="Seconds without a server after which to give up; 0: never.")  # fmt: skip
@log_option
def join(
    address: str,
    keys: tuple[Path, ...],
    data: tuple[Path, ...],
    insecure: bool,
    client: tuple[int, ...],
    spec: Path | None,
    test: Path | None,
    keep: Path,
    listen: str,
    fed_server: bool,
    sealed: bool,
    check: bool,
    patience: float,
    log: str,
) -> None:
    """A client of a run: bring your own data, and train whenever it is your turn, until all rounds are done.

    Features never leave this host: smashed data, labels and the client's half of the model do. Several clients of one
    host can share a program: repeat --keys and --data, in the same order. An evaluator that is none of the clients
    gives --test and no --data, a fed server --fed-server.
    """
    _refuse_two_names(keys, insecure, client)
    from splitrelay.deploy.joining import Wish, join_all, name_of
    from splitrelay.experiments.spec import spec_of

    who = client if insecure else keys
    places = list(data) if data or not (test or fed_server) else [None] * len(who)  # only to judge, or to average
    if not who or len(who) != len(places):
        given = f"{len(who)} and {len(data)}"
        what = "--client" if insecure else "--keys"
        raise InputError(f"each client needs its {what} and its --data", value=given, way_out="See join --help.")
    warn_insecure(insecure, log)
    wanted = None if spec is None else spec_of(spec)
    folders = [None] * len(who) if insecure else list(keys)
    numbers = list(client) if insecure else [None] * len(who)
    wishes = [
        Wish(
            address,
            number,
            place,
            folder,
            wanted,
            check,
            patience or (10.0 if check else 0.0),
            test,
            keep,
            listen,
            fed_server,
            sealed,
        )
        for number, place, folder in zip(numbers, places, folders, strict=True)
    ]
    with stopping(None) as stop:
        ready()
        tell, warn = (lambda m: logger(log, client=name_of(m))), (lambda m: alarm(log, client=name_of(m)))
        for words in join_all(wishes, tell, warn, stop):
            say(words)


def _refuse_two_names(keys: tuple[Path, ...], insecure: bool, client: tuple[int, ...]) -> None:
    """The keys say who this is, or --client does where there are none; nothing that was given is left aside."""
    if keys and insecure:
        from splitrelay.deploy.admission import identity_in

        identity_in(keys[0], insecure)  # which refuses the pair
    if keys and client:
        value, way_out = " ".join(map(str, client)), "Leave --client out: the keys say who it is."
        raise InputError("--keys and --client exclude each other", value=value, way_out=way_out)
