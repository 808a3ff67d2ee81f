"""A rehearsal on separate hosts, as far as one machine allows: own addresses, own keys, own data folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from splitrelay.chaos.network_namespaces import SERVER, Namespaces, check_address, check_namespaces_available
from splitrelay.chaos.packet_bridge import Noise, PacketBridge, cables
from splitrelay.data.partition import Partition
from splitrelay.deploy.rehearsal import Plan, Rehearsal
from splitrelay.deploy.subprocesses import Program

PACKETS = ("carried", "doubled", "late", "lost")


class NamespaceRehearsal(Rehearsal):
    """Server and clients in network namespaces; with noise, over cables that double, delay and lose packets."""

    host = str(check_address(SERVER))

    def __init__(self, plan: Plan, say: Callable[[str], None], noise: float = 0.0) -> None:
        super().__init__(plan, say)
        self.noise = Noise(noise, noise, noise)
        self.network: Namespaces | None = None
        self.cables: list[PacketBridge] = []

    def host_of(self, m: int) -> str:
        """Each client has an address of its own."""
        return str(check_address(str(m)))

    def prepare(self) -> Partition:
        """Not without root."""
        check_namespaces_available()
        return super().prepare()

    def start_programs(self, partition: Partition) -> None:
        """The network first."""
        self.network = Namespaces(partition.clients, noisy=self.noise != Noise())
        self.network.open()
        if self.network.noisy:
            self.cables = cables(self.network, self.noise)
        self.say(f"{1 + len(partition.clients)} hosts: server {self.host}, clients after it")
        super().start_programs(partition)

    def clear(self) -> None:
        """Programs, cables, network."""
        super().clear()
        for cable in self.cables:
            cable.close()
        if self.network is not None:
            self.network.close()
        if self.cables:
            self.say("packets: " + ", ".join(f"{number} {what}" for what, number in self.packets().items()))

    def packets(self) -> dict[str, int]:
        """What the cables did."""
        return {what: sum(cable.seen[what] for cable in self.cables) for what in PACKETS}

    def _server(self, partition: Partition) -> Program:
        return self._there(super()._server(partition), SERVER)

    def _client(self, number: int, clients: Sequence[int]) -> Program:
        return self._there(super()._client(number, clients), str(clients[0]))

    def _there(self, program: Program, who: str) -> Program:
        assert self.network is not None
        program.before = self.network.before(who)
        return program
