"""Random cluster faults with a seed: streams, API server, kubelets, nodes, pods, credentials, rights, images,
GPUs, a full volume, another operator's trial in a pod."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Self

from remote.hosts.command import Command
from remote.hosts.host_protocol import HostError
from remote.jobs.job import Agent, Job, JobSpec, slot_path
from tests.support.hosts.local_fleet import kill_kubectl_execs
from tests.support.kubernetes.faults import ENDINGS
from tests.support.pods import PodFleet, with_short_silence

TRIALS = ("fake_bench", "--trial-id", " start ")  # substrings of command lines that may be killed in a pod


class FaultInjector:
    """Thread that injects `count` random faults into a cluster and its pods, or until its block ends, then repairs
    all of them."""

    def __init__(self, pods: PodFleet, seed: int, count: int) -> None:
        self.rng, self._left = random.Random(seed), count  # bounded: a slow machine would never finish
        self.pods, self.faults = pods, pods.cluster.faults
        self.nodes = sorted({str(pod["node"]) for pod in pods.live()})
        self.injected: Counter[str] = Counter()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._inject, daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(120)
        self._repair()
        if self._failure is not None:
            raise self._failure

    def describe(self) -> str:
        return ", ".join(sorted(name.strip("_") for name in self.injected.elements()))

    def wait(self, shortest_sec: float, longest_sec: float) -> bool:
        """Wait for a random time; return True at once when stopped."""
        return self._stopped.wait(self.rng.uniform(shortest_sec, longest_sec))

    def _inject(self) -> None:
        try:
            faults = self._faults_to_inject()
            while self._left and not self.wait(0.1, 0.7):
                self._left -= 1
                fault = self.rng.choice(faults)
                self.injected[fault.__name__] += 1
                fault()
            self._repair()
        except BaseException as error:  # noqa: BLE001 - raised again in the scenario's own thread
            self._failure = error

    def _faults_to_inject(self) -> list[Callable[[], None]]:
        """List the faults to choose from; a frequent one several times."""
        anywhere = [*[self._process] * 3, self._delete, self._other_operator, kill_kubectl_execs]
        of_machines = [self._server, self._black_hole, self._kubelet, self._node, self._silent_node]
        by_switch = [*[self._stream] * 5, *[self._streams_of_a_node] * 2, self._out_of_memory, self._pulls, self._gpus]
        by_switch += [self._credentials, self._rights, self._full_volume]
        return [*anywhere, *of_machines, *by_switch]

    def _repair(self) -> None:
        self.pods.free_volume()
        self.pods.repair()

    def _pod(self) -> dict[str, object] | None:
        live = sorted(self.pods.live(), key=lambda pod: str(pod["name"]))
        return self.rng.choice(live) if live else None

    def _stream(self) -> None:
        after = self.rng.choice([None, 0, 1, 33, 40, self.rng.randrange(34, 4000)])
        how, nth = self.rng.choice(ENDINGS), self.rng.randrange(1, 4)
        where = {} if after is None else {"after_stdout_bytes": after}
        self.faults.exec(how, nth=nth, times=self.rng.randrange(1, 3), **where)

    def _streams_of_a_node(self) -> None:
        self.faults.end_streams(self.rng.choice(self.nodes), self.rng.choice(ENDINGS))

    def _process(self) -> None:
        pod = self._pod()
        if pod is None:
            return
        with contextlib.suppress(RuntimeError):  # the pod was deleted meanwhile
            running = self.pods.cluster.processes(str(pod["name"]))
            ours = sorted(pid for pid, argv in running.items() if any(word in str(argv) for word in TRIALS))
            if ours:
                self.faults.kill(str(pod["name"]), self.rng.choice(ours))

    def _server(self) -> None:
        self.faults.stop_server(seconds=self.rng.uniform(0.2, 1.5))

    def _black_hole(self) -> None:
        self.faults.silence_server()
        self.wait(0.2, 1.5)
        self.faults.clear()

    def _kubelet(self) -> None:
        self.faults.restart_kubelet(self.rng.choice(self.nodes), seconds=0.5)

    def _delete(self) -> None:
        self._on_pod(lambda name: self.faults.delete_pod(name, grace=self.rng.choice([0, 1])))

    def _out_of_memory(self) -> None:
        self._on_pod(self.faults.oom_kill)

    def _on_pod(self, act: Callable[[str], None]) -> None:
        pod = self._pod()
        if pod is not None:
            with contextlib.suppress(RuntimeError):
                act(str(pod["name"]))

    def _node(self) -> None:
        self._lose(lambda node: self.faults.lose_node(node, processes_die=self.rng.random() < 0.5))

    def _silent_node(self) -> None:
        self._lose(self.faults.silence_node)

    def _lose(self, act: Callable[[str], None]) -> None:
        node = self.rng.choice(self.nodes)
        act(node)
        self._for_a_while()
        self.faults.restore_node(node)

    def _for_a_while(self) -> None:
        self.wait(0.3, 4.0)

    def _credentials(self) -> None:
        self.faults.expire_credentials()
        self._streams_of_a_node()
        self._for_a_while()
        self.faults.clear()

    def _rights(self) -> None:
        verb, resource = self.rng.choice([("get", "pods/exec"), ("create", "pods/exec"), ("list", "pods")])
        self.faults.forbid(verb=verb, resource=resource)
        self._streams_of_a_node()
        self._for_a_while()
        self.faults.clear()

    def _pulls(self) -> None:
        self.faults.fail_pulls("*", "timeout")
        self._delete()
        self._for_a_while()
        self.faults.repair_pulls("*")

    def _gpus(self) -> None:
        pod = self._pod()
        if pod is not None:
            self.faults.set_gpus(str(pod["node"]), 0)
            with contextlib.suppress(RuntimeError):
                self.faults.delete_pod(str(pod["name"]), grace=0)
            self._for_a_while()
            self.faults.set_gpus(str(pod["node"]), 1)

    def _full_volume(self) -> None:
        self.pods.fill_volume()
        self.wait(0.3, 2.0)
        self.pods.free_volume()

    def _other_operator(self) -> None:
        """Run another operator's trial of one second in the first pod with a free slot."""
        host = self.rng.choice(with_short_silence(self.pods.pod_hosts()))
        name = f"{self.rng.randrange(10**9)}.1"
        job = Job(Agent(host), f"{host.workdir}/runs/theirs/{name}", slot=slot_path(host))
        with contextlib.suppress(HostError):  # the cluster is faulty for other operators, too
            job.start(JobSpec(command=Command(argv=("sleep", "1")), deadline_sec=60.0))
