"""`splitrelay serve`."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import STOPPED, say, stopping
from splitrelay.cli.deploy_options import (
    Seconds,
    away_option,
    build_alarm,
    build_logger,
    get_timeouts,
    keys_options,
    log_option,
    notify_systemd,
    warn_insecure,
)
from splitrelay.cli.key_values import settings_argument
from splitrelay.cli.spec_arguments import check_device, device_option, list_spec_keys, load_spec_arguments
from splitrelay.errors import InputError, OutOfRange

if TYPE_CHECKING:
    from splitrelay.deploy.authorization import Authorizer
    from splitrelay.runs.spec import Spec


@click.command(cls=Command, keys=list_spec_keys, example="splitrelay serve first.toml --keys server")
@settings_argument(list_spec_keys, metavar="[SPEC] [KEY=VALUE]...")
@keys_options
@click.option(
    "--listen", help="Address and port; port 0 for any free port (default: 0.0.0.0:7443, insecure 127.0.0.1:7443)."
)
@click.option("--out", type=click.Path(path_type=Path), help="The run directory (default: results/NAME).")
@away_option
@click.option("--lease", type=Seconds(0), default=60, show_default=True, help="Seconds that a client may be absent.")
@click.option("--patience", type=Seconds(0, min_open=True), default=300, show_default=True,
              help="Seconds that one local step may take.")  # fmt: skip
@click.option("--retries", type=click.IntRange(min=0), default=3, show_default=True,
              help="Expired leases or failures of a visit before the run stops.")  # fmt: skip
@click.option("--visit-deadline", type=Seconds(0, min_open=True),
              help="Seconds for a whole visit (default: --patience for each of K + 2 steps).")  # fmt: skip
@click.option("--strikes", type=click.IntRange(min=0), default=3, show_default=True,
              help="Failed visits before a client is quarantined (splitrelay quarantine); 0 for never.")  # fmt: skip
@click.option("--stalled-after", type=Seconds(0),
              help="Seconds of waiting after which the run is reported as stalled (default: --lease).")  # fmt: skip
@click.option("--quorum", type=int, help="Start when this number of clients is connected (default: all).")
@click.option("--without", type=int, multiple=True,
              help="Exclude a client. During a run: skip its visits from now on. Repeatable.")  # fmt: skip
@click.option("--with", "readmit", type=int, multiple=True,
              help="Allow a client again that was excluded during the run. Repeatable.")  # fmt: skip
@click.option("--back-to", type=click.IntRange(min=0), metavar="ROUND",
              help="Continue from the checkpoint of this round; set later results aside. Give it once.")  # fmt: skip
@click.option("--from-scratch", is_flag=True,
              help="Start again at round 0; existing results are set aside. Give it once.")  # fmt: skip
@click.option("--keep-checkpoints", type=click.IntRange(min=2), default=2, show_default=True,
              help="Number of checkpoints to keep for --back-to.")  # fmt: skip
@click.option("--accept-change", is_flag=True,
              help="Continue although your code or data have changed, and record the change.")  # fmt: skip
@click.option("--judge", is_flag=True,
              help="Peer to peer: the evaluator is not one of the clients (keys issue --evaluator).")  # fmt: skip
@click.option("--fed-server", is_flag=True,
              help="Let a fed server average the client halves; this server cannot read them.")  # fmt: skip
@click.option("--model-for", type=click.Choice(["observer", "evaluator", "client", "nobody"]), multiple=True,
              default=["observer"], show_default=True,
              help="Roles that may collect the model. Repeatable.")  # fmt: skip
@click.option("--linger", type=Seconds(0), default=600, show_default=True,
              help="Seconds to answer status and collect after the last round.")  # fmt: skip
@click.option(
    "--port-file", type=click.Path(path_type=Path), help="Write the port to this file when the server listens."
)
@device_option
@log_option
def serve(
    settings: Sequence[str], keys: Path | None, insecure: bool, listen: str | None, out: Path | None, **how: Any
) -> None:
    """Start the server of a run: wait for the clients, train with them, and write the run directory.

    Create keys first (splitrelay keys --help), and try the spec on this machine (splitrelay rehearse). After the server
    was stopped (SIGTERM, Ctrl-C) or killed, the same command continues from the last committed visit. The result is
    identical to that of an uninterrupted run. The exit code of a server that was stopped before the last round is 130.
    """
    check_device(how["device"])
    address = check_address(listen, insecure)
    from splitrelay.deploy.server_program import ServerConfig, ServerProgram
    from splitrelay.deploy.server_visit import Policy

    spec = load_spec_arguments("serve", settings)
    check_clients(spec.partition.M, how["without"], how["quorum"])
    for m in how["readmit"]:
        if not 0 <= m < spec.partition.M:
            raise OutOfRange("--with must name a client of the spec", value=m, limit=f"0 to {spec.partition.M - 1}")
    credentials, admit = build_authorizer(spec, keys, insecure, how["model_for"], how["log"])
    warn_insecure(insecure, how["log"], who="server")
    log = build_logger(how["log"], who="server")
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
        has_evaluator=how["judge"],
        readmit=how["readmit"],
        back_to=how["back_to"],
        from_scratch=how["from_scratch"],
        keep_checkpoints=how["keep_checkpoints"],
        accept_change=how["accept_change"],
        device=how["device"],
    )
    _raise_file_limit()
    with stopping(None) as stop:
        on_listening = partial(_report_port, file=how["port_file"])
        serving = ServerProgram(offer, log, stop, build_alarm(how["log"], who="server"), on_listening)
        try:
            for progress in serving.rows():
                row = progress.row
                log(f"round {row['round']}: accuracy {row['test_accuracy']:.2%}, test loss {row['test_loss']:.4f}")
        except KeyboardInterrupt:
            notify_systemd("STOPPING=1")
            log(f"the run is in {offer.out}; the same command continues it.")
            sys.exit(STOPPED)
    say(str(offer.out))


def _raise_file_limit() -> None:
    """Allow as many open files as the system permits, because each client needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check_clients(M: int, without: Sequence[int], quorum: int | None) -> None:
    """Check --without and --quorum against the spec's clients."""
    for m in without:
        if not 0 <= m < M:
            raise OutOfRange("--without must name a client of the spec", value=m, limit=f"0 to {M - 1}")
    remaining = M - len(set(without))
    if not remaining:
        value, limit = " ".join(map(str, without)), f"at most {M - 1} of {M} clients"
        raise OutOfRange("--without excludes all clients", value=value, limit=limit)
    if quorum is not None and not 1 <= quorum <= remaining:
        what = "--quorum counts the clients that are not excluded by --without"
        raise OutOfRange(what, value=quorum, limit=f"1 to {remaining}")


def check_address(listen: str | None, insecure: bool) -> str:
    """Return the address to listen on. Without keys it is the loopback address by default."""
    from splitrelay.network.grpc_channel import check_address

    address = listen or ("127.0.0.1:7443" if insecure else "0.0.0.0:7443")
    check_address(address, listen=True)
    return address


def build_authorizer(
    spec: Spec, keys: Path | None, insecure: bool, model_for: Sequence[str], log: str
) -> tuple[Any, Authorizer]:
    """Return the credentials of the server, which are reloaded when they change, and its authorizer."""
    from splitrelay.deploy.authorization import anyone, authorize_by_certificate, load_identity_with_role
    from splitrelay.security.certificates import SERVER
    from splitrelay.security.credential_reload import IdentityReloader, build_reloading_credentials
    from splitrelay.security.revocation import Revocations

    identity, warn = load_identity_with_role(keys, insecure, (SERVER,)), build_alarm(log, who="server")
    if identity is None:
        return None, anyone
    if "nobody" in model_for and len(model_for) > 1:
        raise InputError("--model-for nobody cannot be combined with other roles", value=" ".join(model_for))
    revocations = Revocations(identity.revocation_file, identity.ca, warn)
    roles = [role for role in model_for if role != "nobody"]
    return build_reloading_credentials(IdentityReloader(identity, warn)), authorize_by_certificate(
        revocations, spec.partition.M, roles
    )


def _report_port(port: int, file: Path | None) -> None:
    from splitrelay.atomic_files import write_text

    if file is not None:
        write_text(file, f"{port}\n")
    notify_systemd()
