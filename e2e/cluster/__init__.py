"""A real Kubernetes cluster on one Linux machine, without Docker, for tests and for hands-on work.

etcd, Kubernetes and CoreDNS are built from their Go modules; containerd, runc and the CNI plugins come from the
distribution. Each node is a network namespace and a mount namespace of its own, so that nodes can be cut off, frozen and
killed like machines, and so that nothing of them is left when they go.

    with Cluster("mine", nodes=2) as cluster:
        cluster.kubectl("get", "nodes")
        with cluster.isolated("node2"):
            ...
"""

from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError, ClusterTimeout, eventually

__all__ = ["Cluster", "ClusterError", "ClusterTimeout", "eventually"]
