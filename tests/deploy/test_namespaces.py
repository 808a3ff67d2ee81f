"""Rehearse in network namespaces whose links duplicate, reorder and drop packets."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from splitrelay.chaos import network_namespaces
from splitrelay.chaos.network_namespaces import (
    NamespaceHosts,
    Noise,
    get_address,
    get_namespace,
    list_namespaces,
    remove_stale_namespaces,
    run_ip,
)
from splitrelay.deploy.rehearsal import Rehearsal, RehearsalOptions
from splitrelay.errors import InputError, WorkError
from tests.support.deployment import small_spec


def can_create_namespaces() -> bool:
    """Return whether this kernel allows this user to create a namespace."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"splitrelay-{os.getpid()}-probe"  # other workers of the test command probe at the same time
    try:
        run_ip("netns", "add", name)
        run_ip("netns", "delete", name)
    except WorkError:
        return False
    return True


needs_root = pytest.mark.skipif(not can_create_namespaces(), reason="needs root, iproute2 and network namespaces")


@needs_root
def test_run_over_noisy_links_equals_simulation(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=2", "C=5", "K=3", "engine=fast")
    hosts = NamespaceHosts(Noise(0.05, 0.05, 0.05))
    verdict = Rehearsal(RehearsalOptions(spec, tmp_path / "run", timeout=600), lambda text: None, hosts).run()
    assert verdict.is_same
    assert min(hosts.count_packets().values()) > 0
    assert not list_namespaces(get_namespace(""))


@needs_root
def test_namespaces_of_killed_rehearsal_are_removed() -> None:
    code = (
        "import os, signal; from splitrelay.chaos.network_namespaces import NamespaceHosts; "
        "NamespaceHosts().open([0]); print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
    assert len(list_namespaces(f"splitrelay-{dead}-")) == 3
    hosts = NamespaceHosts()
    hosts.open([0])
    try:
        assert not list_namespaces(f"splitrelay-{dead}-")
        remove_stale_namespaces()
        assert len(list_namespaces(get_namespace(""))) == 3
    finally:
        hosts.close()


def test_namespaces_without_root_raise_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError):
        network_namespaces.check_namespaces_available()


def test_each_host_has_its_own_address() -> None:
    hosts = [get_address("server"), *(get_address(str(m)) for m in range(1000))]
    assert len(set(hosts)) == 1001
