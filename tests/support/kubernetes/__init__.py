"""A Kubernetes of the tests' own: real kubectl and the Python client talk to it, its pods are local processes.

    with Cluster(nodes=4) as cluster:
        cluster.kubectl("apply", "-k", "manifests/overlays/pods")
        cluster.faults.exec("close-1000-without-status", nth=3, after_stdout_bytes=4096)

Built to recordings of Kubernetes 1.34 (data/ holds what is needed of them), so that its answers, events and endings
have the words and the order of the real ones; test_conformance.py holds it to them. `python -m
tests.support.kubernetes` is the server; it dies with whoever started it, and every pod with it.

Its limits. What is not here cannot be shown by a test that runs on it:
- Linux and root alone; pods share the machine's network (their addresses are 127.x.y.z, so two pods cannot listen on
  the same port of every address), its users, kernel limits and clock (clock.c gives a pod another time of day). No
  cluster DNS: pods of a subdomain find each other by a hosts file. No NetworkPolicy, no Services with addresses, no
  port-forward, no attach.
- Every image is the machine itself, read-only. Resources are counted, not enforced: `oom_kill` is a switch, cpu and
  memory limits do nothing; memory-backed and (`disk_bytes`) other emptyDirs are truly full when they are full.
- Memory-backed emptyDirs are each container's own and begin empty after a restart. Claims are folders.
- Exec speaks WebSocket v5 and v4, not SPDY: a user who may `create` but not `get` pods/exec is refused. That
  containerd closes standard input early (once a process has closed its output) happens by the switch `stdin-cut` alone.
- No RBAC: rules are denied by switch, roles and bindings are only stored. Tokens, no client certificates.
- Pods of Jobs carry no finalizer: a real one of an index with a limit of its own stays, also when deleted by force,
  until its replacement has been made; so a namespace that is deleted with such a Job in it never goes.
- Controllers: Jobs, scheduler, taint eviction, claims, quotas, namespaces. Deployments, StatefulSets, JobSets, CRDs,
  preemption, garbage collection beyond owners, disruption budgets: none.
- Validation: the schemas (unknown fields, types, quantities), names, mounts, GPU requests, what may not change. Not:
  enums, ranges, most rules that span fields. `kubectl get` shows names and ages alone, `kubectl explain` finds nothing;
  Protobuf bodies are for reviews alone.
- A lost node, a silent server and a silent node are told to the parts of this process, not made by cutting a network.
"""

from tests.support.kubernetes.cluster import Cluster, unavailable
from tests.support.kubernetes.kubectl import Kubectl

__all__ = ["Cluster", "Kubectl", "unavailable"]
