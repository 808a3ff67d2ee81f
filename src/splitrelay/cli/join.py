"""`splitrelay join`."""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import STOPPED, say, stopping
from splitrelay.cli.deploy_options import (
    Seconds,
    build_alarm,
    build_logger,
    get_timeouts,
    insecure_option,
    log_option,
    notify_systemd,
    warn_insecure,
)
from splitrelay.cli.spec_arguments import CPU, check_device, device_option
from splitrelay.errors import InputError

FOLDER = click.Path(path_type=Path)


@click.command(
    cls=Command, example="splitrelay join s.example.org:7443 --keys hospital-3 --data patients.npz --spec first.toml"
)
@click.argument("address", metavar="HOST:PORT")
@click.option("--keys", multiple=True, type=FOLDER, help="This client's folder of keys (from splitrelay keys issue).")
@click.option(
    "--data", multiple=True, type=FOLDER, help="This client's data: an .npz file, a table or a folder of images."
)
@insecure_option
@click.option("--client", multiple=True, type=click.IntRange(min=0),
              help="The number of this client (only with --insecure; otherwise the keys contain it).")  # fmt: skip
@click.option("--spec", type=FOLDER,
              help="Your own copy of the spec, or the server's terms.toml. Any difference ends the join.")  # fmt: skip
@click.option("--code", multiple=True, type=FOLDER,
              help="Your own copy of a module that the spec names. It must have the server's hash.")  # fmt: skip
@click.option("--accept-spec", default="", metavar="DIGEST",
              help="Accept the terms that have this digest, without a copy of the spec.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(min=0), default=1, show_default=True,
              help="How often the server may repeat the whole run, for example after it was set back.")  # fmt: skip
@click.option("--state", type=FOLDER, help="Folder in which the client counts its visits (default: its key folder).")
@click.option("--test", type=FOLDER, help="The test set of the evaluator (peer to peer, or with a fed server).")
@click.option("--keep", type=FOLDER, default=Path("model.safetensors"), show_default=True,
              help="Where the evaluator writes the model.")  # fmt: skip
@click.option("--listen", default="", metavar="HOST:PORT",
              help="Receive halves of other clients here (peer to peer); port 0 for any free port.")  # fmt: skip
@click.option(
    "--fed-server", is_flag=True, help="Run as the fed server, which averages the client halves and has no data."
)
@click.option("--sealed", is_flag=True, help="Take part only if the server cannot read the clients' half.")
@click.option("--check", is_flag=True, help="Check keys, data and spec against the server, then exit without training.")
@click.option("--patience", type=Seconds(0), default=0, show_default=True,
              help="Exit after so many seconds without a connection to the server; 0 for never.")  # fmt: skip
@device_option
@log_option
def join(
    address: str,
    keys: tuple[Path, ...],
    data: tuple[Path, ...],
    insecure: bool,
    client: tuple[int, ...],
    spec: Path | None,
    code: tuple[Path, ...],
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
    device: str,
    log: str,
) -> None:
    """Take part in a run with your own data, until all rounds are done.

    The features themselves stay on this host. The smashed data, the labels and the client's half of the model leave it,
    and smashed data reveal much of the features: see docs/security.md. With placement=whole no smashed data leave it,
    but a malicious server can compute features from the changes of the weights. The client takes layers, cut, K, eta,
    clip, momentum, batch size and the number of visits from its own copy of the spec, never from the server. Without
    --spec or --accept-spec it shows what the server offers and what would leave this host, and asks. --check shows the
    same and does not train; it tells the server nothing of the data unless --spec or --accept-spec is given.

    The exit code is not 0 if the server ends the run before this client has done its part of the last round. It is 130
    if the client was stopped (Ctrl-C, SIGTERM) before the end.

    Several clients of one host can share a program: repeat --keys and --data, in the same order. A separate evaluator
    gives --test and no --data, a fed server --fed-server.
    """
    check_device(device)
    if fed_server and device != CPU:
        raise InputError("the fed server averages on the CPU", value=device, limit=CPU, hint="Leave --device out.")
    _check_names(keys, insecure, client)
    from splitrelay.deploy.client_program import LEFT, ClientOptions, get_client_name, join_all
    from splitrelay.deploy.handshake import read_agreed_spec
    from splitrelay.deploy.lease_limits import Approval

    _check_digest(accept_spec)
    who = client if insecure else keys
    places = (
        list(data) if data or not (test or fed_server) else [None] * len(who)
    )  # an evaluator or a fed server without data
    if not who or len(who) != len(places):
        what = "--client" if insecure else "--keys"
        given = f"{len(who)} {what} and {len(data)} --data"
        hint = "See splitrelay join --help."
        raise InputError(f"each client needs one {what} and one --data", value=given, hint=hint)
    warn_insecure(insecure, log)
    agreed, approval = None if spec is None else read_agreed_spec(spec), Approval(_ask if sys.stdin.isatty() else None)
    folders = [None] * len(who) if insecure else list(keys)
    numbers = list(client) if insecure else [None] * len(who)
    options = [
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
            code=code,
            device=device,
        )
        for number, place, folder in zip(numbers, places, folders, strict=True)
    ]
    with stopping(None) as stop, _make_deterministic(device):
        notify_systemd()
        results = join_all(
            options,
            lambda m: build_logger(log, client=get_client_name(m)),
            lambda m: build_alarm(log, client=get_client_name(m)),
            stop,
        )
        has_left = False
        for result in results:
            say(result)
            has_left = has_left or result == LEFT
    if has_left:
        sys.exit(STOPPED)


def _make_deterministic(device: str) -> AbstractContextManager[None]:
    """Return a context in which a GPU gives the same bits every time. On the CPU a client may have no torch."""
    if device == CPU:
        return nullcontext()
    from splitrelay.runs.build import get_device
    from splitrelay.runs.trainer import set_deterministic

    return set_deterministic(get_device(device))


def _ask(text: str) -> bool:
    click.echo(text, err=True)
    return click.confirm("Join this run?", err=True)


def _check_digest(digest: str) -> None:
    if digest and not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        limit, hint = "64 hexadecimal digits", "The server prints it when it starts, and join --check shows it."
        raise InputError("--accept-spec is not a digest", value=digest[:80], limit=limit, hint=hint)


def _check_names(keys: tuple[Path, ...], insecure: bool, client: tuple[int, ...]) -> None:
    """Raise an InputError if --keys is combined with --insecure or --client."""
    if keys and insecure:
        from splitrelay.deploy.authorization import load_identity_with_role

        load_identity_with_role(keys[0], insecure)  # raises the error
    if keys and client:
        value, hint = " ".join(map(str, client)), "Leave out --client; the keys contain the number."
        raise InputError("--keys and --client cannot be combined", value=value, hint=hint)
