"""A Kubernetes of the tests' own: real kubectl and the Python client talk to it, its pods are local processes.

    with Cluster(nodes=4) as cluster:
        cluster.kubectl("apply", "-k", "manifests/overlays/pods")
        cluster.faults.exec("close-1000-without-status", nth=3, after_stdout_bytes=4096)

Built to recordings of Kubernetes 1.34 (data/ holds what is needed of them), so that its answers, events and endings
have the words and the order of the real ones. `python -m tests.cluster` is the server; it dies with whoever started it.
"""

from tests.cluster.cluster import Cluster, Kubectl, unavailable

__all__ = ["Cluster", "Kubectl", "unavailable"]
