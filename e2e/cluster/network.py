"""The network of a cluster: a namespace for each node, a bridge in the first that joins them, a link to the machine.

Nothing leads further out: pods reach each other, the API server and this machine. A node is cut off at the bridge's side
of its link, so that its own routes stay and its packets vanish, as they do when a switch fails.
"""

import json
from pathlib import Path
from typing import NamedTuple

from e2e.cluster.errors import eventually
from e2e.cluster.instance import Instance
from e2e.cluster.shell import attempt, run

_BRIDGE = "nodes"
_TO_HOST = "to-host"


def create(instance: Instance) -> None:
    """Make namespaces, bridge, links and routes for all nodes."""
    for number in instance.numbers:
        run("ip", "netns", "add", instance.netns(number))
        _ip(instance, number, "link", "set", "lo", "up")
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        run("nsenter", f"--net=/run/netns/{instance.netns(number)}", "sh", "-c", forward)
    _create_bridge(instance)
    for number in instance.numbers[1:]:
        _join(instance, number)
    for number in instance.numbers:
        pods, via = str(instance.node_pods(number)), instance.node_address(number)
        run("ip", "route", "add", pods, "via", via, "dev", instance.host_link)
        for other in instance.numbers:
            if other != number:
                _ip(instance, other, "route", "add", pods, "via", via)
    services = str(instance.service_network)
    run("ip", "route", "add", services, "via", instance.node_address(1), "dev", instance.host_link)


def cut(instance: Instance, number: int) -> None:
    """Take a node's link down. The node and its pods live on."""
    _ip(instance, 1, "link", "set", _port(number), "down")


def heal(instance: Instance, number: int) -> None:
    """Take a node's link up again."""
    _ip(instance, 1, "link", "set", _port(number), "up")


def remove(instance: Instance) -> None:
    """Remove what `create` made, whole or in part. Every process in the namespaces must be gone."""
    attempt("ip", "link", "delete", instance.host_link)
    for name in traces(instance).namespaces:
        run("ip", "netns", "delete", name)
    eventually("end of the network", lambda: not any(traces(instance)), seconds=10)


class Traces(NamedTuple):
    """What exists of a cluster's network on this machine."""

    namespaces: tuple[str, ...]
    links: tuple[str, ...]


def traces(instance: Instance) -> Traces:
    """The namespaces and links of a cluster that exist now."""
    directory = Path("/run/netns")
    numbers = range(1, 10)
    namespaces = tuple(name for n in numbers if (directory / (name := instance.netns(n))).exists())
    links = json.loads(run("ip", "-json", "link", "show"))
    ours = tuple(link["ifname"] for link in links if link["ifname"] == instance.host_link)
    return Traces(namespaces, ours)


def _create_bridge(instance: Instance) -> None:
    prefix = instance.node_network.prefixlen
    _ip(instance, 1, "link", "add", _BRIDGE, "type", "bridge")
    _ip(instance, 1, "address", "add", f"{instance.node_address(1)}/{prefix}", "dev", _BRIDGE)
    _ip(instance, 1, "link", "set", _BRIDGE, "up")
    peer = ("type", "veth", "peer", "name", _TO_HOST, "netns", instance.netns(1))
    run("ip", "link", "add", instance.host_link, *peer)
    _ip(instance, 1, "link", "set", _TO_HOST, "master", _BRIDGE, "up")
    run("ip", "address", "add", f"{instance.host_address}/{prefix}", "dev", instance.host_link)
    run("ip", "link", "set", instance.host_link, "up")
    # Without any route a packet to a Service is dropped before kube-proxy's rules see it.
    _ip(instance, 1, "route", "add", "default", "dev", _BRIDGE)


def _join(instance: Instance, number: int) -> None:
    peer = ("type", "veth", "peer", "name", "eth0", "netns", instance.netns(number))
    _ip(instance, 1, "link", "add", _port(number), *peer)
    _ip(instance, 1, "link", "set", _port(number), "master", _BRIDGE, "up")
    address = f"{instance.node_address(number)}/{instance.node_network.prefixlen}"
    _ip(instance, number, "address", "add", address, "dev", "eth0")
    _ip(instance, number, "link", "set", "eth0", "up")
    _ip(instance, number, "route", "add", "default", "via", instance.node_address(1))


def _port(number: int) -> str:
    return f"to-node{number}"


def _ip(instance: Instance, number: int, *words: str) -> None:
    run("ip", "-netns", instance.netns(number), *words)
