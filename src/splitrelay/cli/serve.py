"""`splitrelay serve`."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import say
from splitrelay.cli.deploy_options import (
    Seconds,
    alarm,
    get_timeouts,
    keys_options,
    log_option,
    logger,
    ready,
    warn_insecure,
)
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.signals import stopping
from splitrelay.cli.spec_arguments import list_spec_keys, load_spec_arguments
from splitrelay.errors import InputError, OutOfRange

if TYPE_CHECKING:
    from splitrelay.deploy.authorization import Authorizer
    from splitrelay.runs.spec import Spec


@click.command(cls=Command, keys=list_spec_keys, example="splitrelay serve first.toml --keys server")
@settings_argument(list_spec_keys, metavar="[SPEC] [KEY=VALUE]...")
@keys_options
@click.option(
    "--listen", help="Address and port; port 0: any that is free (default: 0.0.0.0:7443; insecure 127.0.0.1:7443)."
)
@click.option("--out", type=click.Path(path_type=Path), help="The run's directory (default: results/ and its name).")
@click.option("--away", type=click.Choice(["wait", "retry", "skip"]), default="wait", show_default=True,
              help="What to do about a client that stays away.")  # fmt: skip
@click.option("--lease", type=Seconds(0), default=60, show_default=True, help="Seconds that it may be away.")
@click.option("--patience", type=Seconds(0, min_open=True), default=300, show_default=True,
              help="Seconds that one local step may take.")  # fmt: skip
@click.option("--retries", type=click.IntRange(min=0), default=3, show_default=True,
              help="Leases, or failures, before the run stops.")  # fmt: skip
@click.option("--visit-deadline", type=Seconds(0, min_open=True),
              help="Seconds that a whole visit may take (default: --patience for each of K + 2 steps).")  # fmt: skip
@click.option("--strikes", type=click.IntRange(min=0), default=3, show_default=True,
              help="Failed visits that put a client into quarantine (see splitrelay quarantine); 0: none.")  # fmt: skip
@click.option("--stalled-after", type=Seconds(0),
              help="Report for whom the run waits after so many seconds (default: --lease).")  # fmt: skip
@click.option("--quorum", type=int, help="Begin when so many clients are here (default: all).")
@click.option("--without", type=int, multiple=True,
              help="A client that will not come. During a run: skip its visits from now on. Repeatable.")  # fmt: skip
@click.option("--with", "readmit", type=int, multiple=True,
              help="A client that was excluded during the run may come again. Repeatable.")  # fmt: skip
@click.option("--back-to", type=click.IntRange(min=0), metavar="ROUND",
              help="Go on from this round's checkpoint; what came after it is set aside. Give it once.")  # fmt: skip
@click.option("--from-scratch", is_flag=True,
              help="Begin again at round 0; what the directory has is set aside. Give it once.")  # fmt: skip
@click.option("--keep-checkpoints", type=click.IntRange(min=2), default=2, show_default=True,
              help="Checkpoints that are kept: so far back can the run be set.")  # fmt: skip
@click.option("--judge", is_flag=True,
              help="Peer to peer: the evaluator is none of the clients (keys issue --evaluator).")  # fmt: skip
@click.option("--fed-server", is_flag=True,
              help="A fed server averages the clients' halves; this one never reads them.")  # fmt: skip
@click.option("--model-for", type=click.Choice(["observer", "evaluator", "client", "nobody"]), multiple=True,
              default=["observer"], show_default=True, help="To whom collect gives the model. Repeatable.")  # fmt: skip
@click.option("--linger", type=Seconds(0), default=600, show_default=True,
              help="Seconds to answer status and collect after the last round.")  # fmt: skip
@click.option("--port-file", type=click.Path(path_type=Path), help="Write the port there once we listen.")
@log_option
def serve(
    settings: Sequence[str], keys: Path | None, insecure: bool, listen: str | None, out: Path | None, **how: Any
) -> None:
    """The server of a spec: wait for its clients, train with them, keep the run's directory.

    Stopped (SIGTERM, Ctrl-C) or killed, the same command goes on from the last committed visit, with the same bits.
    """
    address = check_address(listen, insecure)
    from splitrelay.deploy.server_program import ServerConfig, ServerProgram
    from splitrelay.deploy.server_visit import Policy

    spec = load_spec_arguments("serve", settings)
    refuse_nobody(spec.partition.M, how["without"], how["quorum"])
    for m in how["readmit"]:
        if not 0 <= m < spec.partition.M:
            raise OutOfRange("--with names no client of this spec", value=m, limit=f"0 to {spec.partition.M - 1}")
    credentials, admit = build_authorizer(spec, keys, insecure, how["model_for"], how["log"])
    warn_insecure(insecure, how["log"], who="server")
    log = logger(how["log"], who="server")
    offer = ServerConfig(
        spec,
        out or Path("results") / f"{spec.algorithm}-{spec.hash}",
        address,
        Policy(
            how["away"],
            how["lease"],
            how["patience"],
            how["retries"],
            visit=how["visit_deadline"],
            strikes=how["strikes"],
            stalled=how["stalled_after"],
        ),
        how["without"],
        how["quorum"],
        credentials,
        admit,
        get_timeouts(),
        linger=how["linger"],
        fed=how["fed_server"],
        judge=how["judge"],
        readmit=how["readmit"],
        back_to=how["back_to"],
        from_scratch=how["from_scratch"],
        keep_checkpoints=how["keep_checkpoints"],
    )
    _open_files()
    with stopping(None) as stop:
        serving = ServerProgram(offer, log, stop, alarm(how["log"], who="server"))
        serving.listening = lambda port: _listening(port, how["port_file"])
        try:
            for progress in serving.rows():
                row = progress.row
                log(f"round {row['round']}: accuracy {row['test_accuracy']:.2%}, test loss {row['test_loss']:.4f}")
        except KeyboardInterrupt:
            ready("STOPPING=1")
            log(f"kept in {offer.out}; the same command goes on from there.")
            return
    say(str(offer.out))


def _open_files() -> None:
    """As many as the system lets us: each client is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def refuse_nobody(M: int, without: Sequence[int], quorum: int | None) -> None:
    """Whoever is left out is a client of the spec, some are not, and the quorum is of those."""
    for m in without:
        if not 0 <= m < M:
            raise OutOfRange("--without names no client of this spec", value=m, limit=f"0 to {M - 1}")
    to_come = M - len(set(without))
    if not to_come:
        value, limit = " ".join(map(str, without)), f"at most {M - 1} of {M} clients"
        raise OutOfRange("--without leaves nobody to train with", value=value, limit=limit)
    if quorum is not None and not 1 <= quorum <= to_come:
        raise OutOfRange("--quorum is of the clients that come", value=quorum, limit=f"1 to {to_come}")


def check_address(listen: str | None, insecure: bool) -> str:
    """Where to listen: everywhere, but without keys only where this machine itself can call."""
    from splitrelay.network.grpc_channel import check_address

    address = listen or ("127.0.0.1:7443" if insecure else "0.0.0.0:7443")
    check_address(address, listen=True)
    return address


def build_authorizer(
    spec: Spec, keys: Path | None, insecure: bool, model_for: Sequence[str], log: str
) -> tuple[Any, Authorizer]:
    """The server's certificate, which can be renewed while it runs, and whom it lets in."""
    from splitrelay.deploy.authorization import anyone, by_certificate, identity_in
    from splitrelay.security.certificates import SERVER
    from splitrelay.security.credential_reload import IdentityReloader, build_reloading_credentials
    from splitrelay.security.revocation import Revocations

    identity, tell = identity_in(keys, insecure, (SERVER,)), alarm(log, who="server")
    if identity is None:
        return None, anyone
    if "nobody" in model_for and len(model_for) > 1:
        raise InputError("--model-for nobody stands alone", value=" ".join(model_for))
    revocations = Revocations(identity.revocation_file, identity.ca, tell)
    roles = [role for role in model_for if role != "nobody"]
    return build_reloading_credentials(IdentityReloader(identity, tell)), by_certificate(
        revocations, spec.partition.M, roles
    )


def _listening(port: int, file: Path | None) -> None:
    from splitrelay.atomic_files import write_text

    if file is not None:
        write_text(file, f"{port}\n")
    ready()
