"""Fake Kubernetes cluster for kubectl and the Python client; its pods are local processes.

    with Cluster(nodes=4) as cluster:
        cluster.kubectl("apply", "-k", "manifests/overlays/pods")
        cluster.faults.exec("close-1000-without-status", nth=3, after_stdout_bytes=4096)

It has what real kubectl and our requests need, and faults that no real cluster offers. Its responses and stream
endings that the product reads have the text of recordings of Kubernetes 1.34.
`python -m tests.support.kubernetes` is the server; it dies with the process that started it, and every pod with it.

Limits; tests on this cluster cannot show anything about them:
- Linux and root only. Pods share the machine's network (their addresses are 127.x.y.z, so two pods cannot listen on
  the same port of every address), its users, kernel limits and clock (clock.c changes a pod's time of day). No cluster
  DNS: pods of a subdomain find each other by a hosts file. No NetworkPolicy, no Services with addresses, no
  port-forward, no attach, no Events.
- Every image is the machine itself, read-only. GPUs are counted; cpu and memory are not, and their limits do nothing:
  `oom_kill` is a switch. Memory-backed emptyDirs can really run full.
- Claims are folders. A pod has one container, which runs once, whatever the restartPolicy.
- Exec uses WebSocket v5, not SPDY: a user who may `create` but not `get` pods/exec is rejected. containerd
  closes standard input early (once a process has closed its output); here only the switch `stdin-cut` does.
- No RBAC: switches deny requests, roles and bindings are only stored. Tokens, no client certificates.
- A real pod of an index with its own limit stays, even if deleted by force, until its replacement exists. Here its pods
  go once the Job has counted them.
- Controllers: Indexed Jobs, scheduler, taint eviction, claims that name their volume. None for Deployments,
  StatefulSets, JobSets, CRDs, quotas, preemption, garbage collection beyond owners, disruption budgets, evictions by
  the API; namespaces are not deleted. No init containers, no probes.
- Validation and admission: none but the immutable fields of a Job; the golden tests validate the manifests. Apply and
  patches replace whole lists. `kubectl get` prints no columns of a kind, `kubectl explain` finds nothing.
- A lost node, a silent server and a silent node are states of this process; no network is cut.
"""

from tests.support.kubernetes.cluster import Cluster, unavailable_reason

__all__ = ["Cluster", "unavailable_reason"]
