"""`splitrelay join`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import say
from splitrelay.cli.deploy_options import Seconds, alarm, get_timeouts, log_option, logger, ready, warn_insecure
from splitrelay.cli.signals import stopping
from splitrelay.errors import InputError

FOLDER = click.Path(path_type=Path)


@click.command(
    cls=Command, example="splitrelay join s.example.org:7443 --keys hospital-3 --data patients.npz --spec first.toml"
)
@click.argument("address", metavar="HOST:PORT")
@click.option("--keys", multiple=True, type=FOLDER, help="The folder that splitrelay keys issue made for this client.")
@click.option("--data", multiple=True, type=FOLDER, help="This client's images: an .npz, a table, a folder.")
@click.option("--insecure", is_flag=True, help="Without keys or encryption: for tests on one machine.")
@click.option("--client", multiple=True, type=click.IntRange(min=0),
              help="Which client this is, where there are no keys to say it.")  # fmt: skip
@click.option("--spec", type=FOLDER,
              help="Your own copy of the spec, or the server's terms.toml. Any difference ends the join.")  # fmt: skip
@click.option("--accept-spec", default="", metavar="DIGEST",
              help="Accept the terms that have this digest, without a copy of the spec.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(min=0), default=1, show_default=True,
              help="How often the server may repeat the whole run, for example after it was set back.")  # fmt: skip
@click.option("--state", type=FOLDER, help="Folder in which the client counts its visits (default: its key folder).")
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
    accept_spec: str,
    repeats: int,
    state: Path | None,
    test: Path | None,
    keep: Path,
    listen: str,
    fed_server: bool,
    sealed: bool,
    check: bool,
    patience: float,
    log: str,
) -> None:
    """Take part in a run with your own data, until all rounds are done.

    The features themselves stay on this host. The smashed data, the labels and the client's half of the model leave it,
    and smashed data reveal much of the features: see docs/security.md. With placement=whole no smashed data leave it,
    but a malicious server can compute features from the changes of the weights. The client takes layers, cut, K, eta,
    clip, momentum, batch size and the number of visits from its own copy of the spec, never from the server. Without
    --spec or --accept-spec it shows what the server offers and what would leave this host, and asks. --check shows the
    same and does not train; it tells the server nothing of the data unless --spec or --accept-spec is given.

    The exit code is not 0 if the server ends the run before this client has done its part of the last round.

    Several clients of one host can share a program: repeat --keys and --data, in the same order. A separate evaluator
    gives --test and no --data, a fed server --fed-server.
    """
    _refuse_two_names(keys, insecure, client)
    from splitrelay.deploy.client_program import ClientOptions, get_client_name, join_all
    from splitrelay.deploy.disclosure import Approval
    from splitrelay.deploy.handshake import read_agreed_spec

    _check_digest(accept_spec)
    who = client if insecure else keys
    places = list(data) if data or not (test or fed_server) else [None] * len(who)  # only to judge, or to average
    if not who or len(who) != len(places):
        given = f"{len(who)} and {len(data)}"
        what = "--client" if insecure else "--keys"
        raise InputError(f"each client needs its {what} and its --data", value=given, hint="See join --help.")
    warn_insecure(insecure, log)
    agreed, approval = None if spec is None else read_agreed_spec(spec), Approval(_ask if sys.stdin.isatty() else None)
    folders = [None] * len(who) if insecure else list(keys)
    numbers = list(client) if insecure else [None] * len(who)
    wishes = [
        ClientOptions(
            address,
            number,
            place,
            folder,
            agreed,
            check,
            patience or (10.0 if check else 0.0),
            test,
            keep,
            listen,
            fed_server,
            sealed,
            accept_spec,
            approval,
            repeats,
            state,
            get_timeouts(),
        )
        for number, place, folder in zip(numbers, places, folders, strict=True)
    ]
    with stopping(None) as stop:
        ready()
        tell, warn = (
            (lambda m: logger(log, client=get_client_name(m))),
            (lambda m: alarm(log, client=get_client_name(m))),
        )
        for words in join_all(wishes, tell, warn, stop):
            say(words)


def _ask(text: str) -> bool:
    click.echo(text, err=True)
    return click.confirm("Join this run?", err=True)


def _check_digest(digest: str) -> None:
    if digest and not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        limit, hint = "64 hexadecimal digits", "The server prints it when it starts, and join --check shows it."
        raise InputError("--accept-spec is not a digest", value=digest[:80], limit=limit, hint=hint)


def _refuse_two_names(keys: tuple[Path, ...], insecure: bool, client: tuple[int, ...]) -> None:
    """The keys say who this is, or --client does where there are none; nothing that was given is left aside."""
    if keys and insecure:
        from splitrelay.deploy.authorization import identity_in

        identity_in(keys[0], insecure)  # which refuses the pair
    if keys and client:
        value, hint = " ".join(map(str, client)), "Leave --client out: the keys say who it is."
        raise InputError("--keys and --client exclude each other", value=value, hint=hint)
