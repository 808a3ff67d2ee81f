"""Hosts with addresses of their own, over links that double, delay and lose packets: the same bits."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from splitrelay.chaos import network_namespaces
from splitrelay.chaos.namespace_rehearsal import NamespaceRehearsal
from splitrelay.chaos.network_namespaces import Namespaces, check_address, ip, sweep
from splitrelay.deploy.rehearsal import Plan
from splitrelay.errors import InputError, WorkError
from tests.support.deployment import small_spec


def able() -> bool:
    """Whether this kernel and this user can make a namespace."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        ip("netns", "add", "splitrelay-0-probe")
        ip("netns", "delete", "splitrelay-0-probe")
    except WorkError:
        return False
    return True


needs_root = pytest.mark.skipif(not able(), reason="needs root, iproute2 and network namespaces")


@needs_root
def test_separate_hosts_over_bad_cables_make_the_same_bits(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=2", "C=5", "K=3", "engine=fast")
    rehearsal = NamespaceRehearsal(Plan(spec, tmp_path / "run", patience=120), lambda text: None, noise=0.05)
    (verdict,) = rehearsal.play()
    packets = rehearsal.packets()
    assert verdict.same
    assert packets["doubled"] > 0 and packets["late"] > 0 and packets["lost"] > 0
    assert not list(network_namespaces.FOLDER.glob(f"splitrelay-{os.getpid()}-*"))


@needs_root
def test_what_a_killed_rehearsal_left_behind_is_swept_away() -> None:
    code = (
        "import os, signal; from splitrelay.chaos.network_namespaces import Namespaces; "
        "Namespaces([0]).open(); print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
    left = f"splitrelay-{dead}-*"
    assert len(list(network_namespaces.FOLDER.glob(left))) == 3
    network = Namespaces([0])
    network.open()
    try:
        assert not list(network_namespaces.FOLDER.glob(left))
        sweep()
        assert len(list(network_namespaces.FOLDER.glob(f"{network.mark}-*"))) == 3
    finally:
        network.close()


def test_without_root_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="--namespaces needs root"):
        network_namespaces.check_namespaces_available()


def test_every_host_has_an_address_of_its_own() -> None:
    hosts = [check_address("server"), *(check_address(str(m)) for m in range(1000))]
    assert len(set(hosts)) == 1001
