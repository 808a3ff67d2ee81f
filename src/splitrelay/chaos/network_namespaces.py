"""Hosts of their own on one machine: a network namespace for the server and for every client, joined by a switch.

Linux, root, and the program `ip`. Nothing appears in the machine's own network: the switch has a namespace too. After a
kill -9 the next rehearsal sweeps away what the dead one left behind.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TypeVar

from splitrelay.errors import InputError, WorkError

T = TypeVar("T")
MARK = "splitrelay"
SUBNET = IPv4Network("198.18.0.0/15")  # set aside for benchmarks: nobody's address
FOLDER = Path("/run/netns")
CLONE_NEWNET = 0x40000000
SWITCH, SERVER = "switch", "server"


class Namespaces:
    """The network of one rehearsal; `noisy` leaves the links of the clients open for a cable to close."""

    def __init__(self, clients: Sequence[int], noisy: bool = False) -> None:
        self.clients, self.noisy = list(clients), noisy
        self.mark = f"{MARK}-{os.getpid()}"

    def open(self) -> None:
        """Namespaces, switch and links."""
        check_namespaces_available()
        sweep()
        for who in (SWITCH, SERVER, *map(str, self.clients)):
            ip("netns", "add", self.name(who))
            ip("-n", self.name(who), "link", "set", "lo", "up")
        ip("-n", self.name(SWITCH), "link", "add", "bridge", "type", "bridge")
        ip("-n", self.name(SWITCH), "link", "set", "bridge", "up")
        for who in (SERVER, *map(str, self.clients)):
            self._plug(who)

    def close(self) -> None:
        """Links and switch end with their namespaces."""
        for name in _there(self.mark + "-"):
            _forget(name)

    def name(self, who: str) -> str:
        """The namespace of the server, of a client, or of the switch."""
        return f"{self.mark}-{who}"

    def before(self, who: str) -> list[str]:
        """The words before a program that runs there."""
        return ["ip", "netns", "exec", self.name(who)]

    def ends(self, who: str) -> tuple[str, str]:
        """Both ends of a client's link at the switch, to be joined by a cable."""
        return f"near{who}", f"far{who}"

    def _plug(self, who: str) -> None:
        home, switch = self.name(who), self.name(SWITCH)
        near, far = self.ends(who)
        ip("-n", switch, "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", home)
        ip("-n", home, "address", "add", f"{check_address(who)}/{SUBNET.prefixlen}", "dev", "eth0")
        ip("-n", home, "link", "set", "eth0", "up")
        ip("-n", switch, "link", "set", near, "up")
        if not self.noisy or who == SERVER:
            ip("-n", switch, "link", "set", near, "master", "bridge")
            return
        ip("-n", switch, "link", "add", far, "type", "veth", "peer", "name", f"port{who}")
        ip("-n", switch, "link", "set", f"port{who}", "master", "bridge")
        for end in (far, f"port{who}"):
            ip("-n", switch, "link", "set", end, "up")


def check_address(who: str) -> IPv4Address:
    """The server is the first host, client m one of those after it."""
    return SUBNET[1] if who == SERVER else SUBNET[2 + int(who)]


def check_namespaces_available() -> None:
    """What namespaces need is said before anything starts."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        hint = "Run it as root where iproute2 is installed, or leave --namespaces out."
        raise InputError("--namespaces needs root and the program ip", hint=hint)


def sweep() -> None:
    """Namespaces whose rehearsal is no more, as after kill -9."""
    for name in _there(MARK + "-"):
        owner = name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _forget(name)


def _there(mark: str) -> list[str]:
    return sorted(path.name for path in FOLDER.glob(f"{mark}*")) if FOLDER.exists() else []


def _forget(name: str) -> None:
    with suppress(WorkError):
        ip("netns", "delete", name)


def ip(*words: str) -> None:
    """One command of iproute2."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise WorkError(f"ip {' '.join(words)} failed", value=" ".join(done.stderr.split()))


def inside(name: str, action: Callable[[], T]) -> T:
    """Whatever `action` opens belongs to that namespace: a thread of its own enters it, and ends."""
    found: list[T] = []
    errors: list[OSError] = []

    def enter() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            with (FOLDER / name).open() as door:
                if libc.setns(door.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            found.append(action())
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if errors:
        raise WorkError(f"cannot work in the namespace {name}", value=errors[0].strerror)
    return found[0]
