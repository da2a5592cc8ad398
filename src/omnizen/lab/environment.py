"""What a host's command finds in its environment: torchrun's variables and what the lab tells about itself."""

from __future__ import annotations

import json
from dataclasses import dataclass

from omnizen.lab.rates import Link


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What all hosts of a lab share.

    Args:
        hosts: how many.
        address: host 0's address.
        port: a port that is free there.
        interface: the interface to talk over.
        dilation: factor by which the links were slowed.
        network: what kind of network it is, in words that reports show.
    """

    hosts: int
    address: str
    port: int
    interface: str
    dilation: float
    network: str

    def env(self, host: int, link: Link | None, cores: float | None = None) -> dict[str, str]:
        """Return the variables of one host.

        Args:
            link: as shaped, after dilation; None for no limit.
            cores: share of a core that it gets; None for no limit. A host does not see its control group itself.
        """
        up, down = (link.up_bit_per_s / 8, link.down_bit_per_s / 8) if link else (None, None)
        lab = {
            "hosts": self.hosts,
            "rate_bytes_per_s": min(up, down) if up and down else None,
            "up_bytes_per_s": up,
            "down_bytes_per_s": down,
            "dilation": self.dilation,
            "network": self.network,
            "cores": cores,
        }
        return {
            "RANK": str(host),
            "WORLD_SIZE": str(self.hosts),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(host),
            "NODE_RANK": str(host),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": self.interface,
            "OMP_NUM_THREADS": "1",
            "OMNIZEN_LAB": json.dumps(lab),
        }
