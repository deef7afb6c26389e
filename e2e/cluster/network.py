"""The network of a cluster: a bridge in the first node that joins them, a link to the machine.

Nothing leads further out: pods reach each other, the API server and this machine. A node is cut off at the bridge's side
of its link, so that its own routes stay and its packets vanish, as they do when a switch fails.
"""

import json

from e2e.cluster import namespaces
from e2e.cluster.errors import eventually
from e2e.cluster.instance import Instance
from e2e.cluster.programs import Programs
from e2e.cluster.shell import attempt, run

_BRIDGE = "nodes"
_TO_HOST = "to-host"


def create(instance: Instance, programs: Programs) -> None:
    """Make bridge, links and routes for all nodes, whose namespaces are there."""
    for number in instance.numbers:
        _ip(programs, number, "link", "set", "lo", "up")
    _create_bridge(instance, programs)
    for number in instance.numbers[1:]:
        _join(instance, number, programs)
    for number in instance.numbers:
        pods, via = str(instance.node_pods(number)), instance.node_address(number)
        run("ip", "route", "add", pods, "via", via, "dev", instance.host_link)
        for other in instance.numbers:
            if other != number:
                _ip(programs, other, "route", "add", pods, "via", via)
    services = str(instance.service_network)
    run("ip", "route", "add", services, "via", instance.node_address(1), "dev", instance.host_link)


def cut(number: int, programs: Programs) -> None:
    """Take a node's link down. The node and its pods live on."""
    _ip(programs, 1, "link", "set", _port(number), "down")


def heal(number: int, programs: Programs) -> None:
    """Take a node's link up again."""
    _ip(programs, 1, "link", "set", _port(number), "up")


def remove(instance: Instance) -> None:
    """Remove the machine's link; all else went with the processes of the nodes, which must be gone."""
    attempt("ip", "link", "delete", instance.host_link)
    eventually(f"end of link {instance.host_link}", lambda: not links(instance), seconds=10)


def links(instance: Instance) -> list[str]:
    """The machine's links of a cluster that exist now."""
    shown = json.loads(run("ip", "-json", "link", "show"))
    return [link["ifname"] for link in shown if link["ifname"] == instance.host_link]


def _create_bridge(instance: Instance, programs: Programs) -> None:
    prefix = instance.node_network.prefixlen
    _ip(programs, 1, "link", "add", _BRIDGE, "type", "bridge")
    _ip(programs, 1, "address", "add", f"{instance.node_address(1)}/{prefix}", "dev", _BRIDGE)
    _ip(programs, 1, "link", "set", _BRIDGE, "up")
    peer = ("type", "veth", "peer", "name", _TO_HOST, "netns", str(_holder(programs, 1)))
    run("ip", "link", "add", instance.host_link, *peer)
    _ip(programs, 1, "link", "set", _TO_HOST, "master", _BRIDGE, "up")
    run("ip", "address", "add", f"{instance.host_address}/{prefix}", "dev", instance.host_link)
    run("ip", "link", "set", instance.host_link, "up")
    # Without any route a packet to a Service is dropped before kube-proxy's rules see it.
    _ip(programs, 1, "route", "add", "default", "dev", _BRIDGE)


def _join(instance: Instance, number: int, programs: Programs) -> None:
    peer = ("type", "veth", "peer", "name", "eth0", "netns", str(_holder(programs, number)))
    _ip(programs, 1, "link", "add", _port(number), *peer)
    _ip(programs, 1, "link", "set", _port(number), "master", _BRIDGE, "up")
    address = f"{instance.node_address(number)}/{instance.node_network.prefixlen}"
    _ip(programs, number, "address", "add", address, "dev", "eth0")
    _ip(programs, number, "link", "set", "eth0", "up")
    _ip(programs, number, "route", "add", "default", "via", instance.node_address(1))


def _port(number: int) -> str:
    return f"to-node{number}"


def _holder(programs: Programs, number: int) -> int:
    return programs.process(namespaces.holder(number)).pid


def _ip(programs: Programs, number: int, *words: str) -> None:
    run(*namespaces.enter_network(number, programs), "ip", *words)
