"""Hosts of the fleet and their commands, from the settings. No other module depends on the kind of host."""

import json
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.records import Trial, schema
from bench.records.paths import CHECKPOINTS_FOLDER, JOB_SPEC_VARIABLE, NODE_COUNT
from bench.records.run import PlannedTrial, RunRecord
from bench.records.status import ExitCode, read_failure
from remote.cluster.credential_cache import kubectl_of
from remote.cluster.diagnosis.finding import grouped_lines
from remote.cluster.kubeconfig import Target, resolve
from remote.cluster.namespace_client import Cluster
from remote.fleet.gang_agent import GangAgent
from remote.fleet.outcome import OUT_FOLDER, TRIAL_FILE, shared_output_folder, with_shared_output
from remote.hosts.command import Command
from remote.hosts.connectors import CONNECTORS
from remote.hosts.host_protocol import (
    CommandFailed,
    Completed,
    FleetRequest,
    Host,
    HostUnreachable,
    InvalidAddress,
    check,
    parse_json,
)
from remote.hosts.pods.host import PodHost, PodsSection, make_hosts
from remote.hosts.pods.kubectl import ClusterError
from remote.jobs.job import Agent
from tasks.clients.target_cluster import print_target, resolve_target, target_identity
from tasks.clients.worker_queries import query_all
from tasks.errors import ConfirmationRequired, RetryableError, UsageError, error_class
from tasks.settings.layers import Settings

logger = logging.getLogger(__name__)

_DIAGNOSIS_SEC = 15.0
_WORKER_NAME = re.compile(r"worker-[0-9]{1,4}")  # fleet.size is at most 1024
_SAMPLE_TIMEOUT_SEC = 15.0
_ADAPTER_TIMEOUT_SEC = 14_400.0
_CHECK = "check of model and data"
_INSPECT_TIMEOUT_SEC = 600.0  # a model of 14 GB without a manifest is hashed in full


def fleet_hosts(settings: Settings, others: Collection[str] = ()) -> list[Host]:
    """Return the fleet's hosts, named worker-0, worker-1, ..., and the workers `others` beyond the present fleet.size.

    Over pods, the pods with these indices. Names of no worker are ignored.
    """
    connector, kubectl, size = settings.connector, None, settings.fleet.size
    if connector.is_cluster:
        kubectl = kubectl_of(print_target(settings))
    beyond = [int(name.removeprefix("worker-")) + 1 for name in others if _WORKER_NAME.fullmatch(name)]
    names = [f"worker-{index}" for index in range(max(size, *beyond, 1))]
    options = getattr(settings.fleet, connector.name, None)
    request = FleetRequest(names=names, options=options, root=settings.folder, kubectl=kubectl)
    try:
        hosts = list(connector.make_hosts(request))
    except InvalidAddress as error:
        raise UsageError(str(error)) from error
    return [host for index, host in enumerate(hosts) if index < size or host.name in others]


def run_hosts(settings: Settings, run: RunRecord) -> list[Host]:
    """Return the hosts of a run's workers, also of those beyond the present fleet.size."""
    return [host for host in fleet_hosts(settings, run.workers) if host.name in run.workers]


def pod_hosts(target: Target, pods: PodsSection, size: int) -> list[PodHost]:
    """Return the first `size` pods of this cluster and namespace as hosts with the names of workers."""
    names = [f"worker-{index}" for index in range(size)]
    request = FleetRequest(names=names, options=pods, root=Path(), kubectl=kubectl_of(target))
    return make_hosts(request)


def component_hosts(settings: Settings, component: str, *, size: int = 1) -> list[PodHost]:
    """Return `size` pods of another component of the deployment than the workers, like `pod_hosts`."""
    selector = f"app.kubernetes.io/component={component}"
    pods = replace(settings.fleet.pods, selector=selector, container="bench")
    return pod_hosts(resolve_target(settings), pods, size)


class PodDiagnosis:
    """Why pods of the fleet are not up, as `inv status` says it. Read at most every `_DIAGNOSIS_SEC`; thread-safe.

    Without a `target`, which is that of a fleet on this machine, there is nothing to read.
    """

    def __init__(self, target: Target | None) -> None:
        self._target, self._lock = target, threading.Lock()
        self._read_at, self._text = -math.inf, ""

    def read(self) -> str | None:
        """Return the first problem and how many more there are; None without any, or if the cluster does not answer."""
        with self._lock:
            if self._target is not None and time.monotonic() - self._read_at >= _DIAGNOSIS_SEC:
                try:
                    self._text = self._diagnose(self._target)
                except ClusterError as error:
                    logger.debug("the pods cannot be diagnosed: %s", error)
                self._read_at = time.monotonic()
            return self._text or None

    def _diagnose(self, target: Target) -> str:
        # The kubeconfig is read again: a login during the run changes it.
        cluster = Cluster(resolve(kubeconfig=target.kubeconfig, context=target.context, namespace=target.namespace))
        try:
            lines = grouped_lines(cluster.pod_fleet().all_findings)
        finally:
            cluster.close()
        more = f" (and {len(lines) - 1} more: `inv status`)" if len(lines) > 1 else ""
        return f"{lines[0]}{more}" if lines else ""


def worker_groups(
    run: RunRecord, hosts: Sequence[Host]
) -> Iterator[tuple[Sequence[Host], Callable[[Host], Agent], frozenset[str]]]:
    """Yield the hosts, their agents and the ids of the trials of each group: single workers, then all together.

    Over pods a distributed trial has one rank in each pod, and the first worker of the run's plan is the leader.
    """
    gangs = [planned for planned in run.planned if is_gang(run, planned)]
    gang_ids = frozenset(planned.trial_id for planned in gangs)
    single_ids = frozenset(planned.trial_id for planned in run.planned) - gang_ids
    if single_ids or not gang_ids:
        yield hosts, Agent, single_ids
    # Only participating workers: the rendezvous would wait for the others.
    by_name = {host.name: host for host in hosts}
    size = max((planned.trial.world_size for planned in gangs), default=0)
    members = [by_name[name] for name in run.workers if name in by_name][:size]
    if members and isinstance(leader := members[0], PodHost):
        yield members[:1], lambda _: GangAgent(members, leader.address), gang_ids


def is_gang(run: RunRecord, planned: PlannedTrial) -> bool:
    """Tell whether a trial needs several workers at once."""
    return CONNECTORS[run.fleet_kind].is_cluster and planned.trial.workload.is_ranked


def require_same_fleet(settings: Settings, run: RunRecord) -> None:
    """Raise UsageError if the run was started over another fleet, whose workers have the same names."""
    pairs: dict[str, tuple[str | None, str]] = {"fleet.kind": (run.fleet_kind, settings.fleet.kind)}
    if run.fleet_kind == settings.fleet.kind and settings.connector.is_cluster:
        before, now = run.provenance.get("cluster", {}), cluster_location(settings)
        pairs |= {f"cluster.{key}": (before.get(key), now[key]) for key in ("context", "namespace")}
        pairs["the cluster at"] = (before.get("server"), now["server"])
    for name, (old, new) in pairs.items():
        if old != new:
            raise UsageError(
                f"run {run.run_id} was started with {name}: {old}, found {new}", remedy="restore the old value"
            )


def cluster_location(settings: Settings) -> dict[str, str]:
    """Return the cluster of the fleet's pods, for a run's provenance; empty for a fleet on this machine."""
    if not settings.connector.is_cluster:
        return {}
    return target_identity(resolve_target(settings))


@dataclass(frozen=True, kw_only=True)
class BenchProgram:
    """`python -m bench` on the workers: its folder and threads there, the folder that all share, and its inputs.

    `profile` is None over pods, which have their node's GPU. A worker may be silent for `lost_after_sec`.
    """

    workspace: str
    threads: int
    shared: str | None
    model: str
    data: str
    profile: str | None
    lost_after_sec: float

    def command(self, host: Host, *arguments: str) -> Command:
        """Return a command of the program."""
        return Command(
            argv=(*host.python, "-m", "bench", *arguments),
            # Without these every worker starts one thread per core, which slows all workers down.
            environment={
                "OMP_NUM_THREADS": str(self.threads),
                "MKL_NUM_THREADS": str(self.threads),
                "PYTHONUNBUFFERED": "1",
                "PYTHONDONTWRITEBYTECODE": "1",  # see `remote.hosts.bundle`
            },
            folder=self.workspace,
        )

    def trial_command(self, run: RunRecord, host: Host, planned: PlannedTrial, attempt: int, folder: str) -> Command:
        """Return the command of one attempt at a trial; `folder` is that of its job."""
        checkpoints = f"{self.shared or f'{host.workdir}/runs'}/{run.run_id}/{CHECKPOINTS_FOLDER}"
        command = self.command(
            host,
            *("run", "--trial", f"{folder}/{TRIAL_FILE}", "--out", f"{folder}/{OUT_FOLDER}"),
            *("--trial-id", planned.trial_id, "--worker", host.name),
            *("--run-id", run.run_id, "--attempt", str(attempt)),
            *(["--checkpoints", checkpoints] if planned.trial.training is not None else []),
        )
        if is_gang(run, planned):
            count = {NODE_COUNT: str(planned.trial.world_size)}
            command = replace(command, environment={**command.environment, **count})
        if self.shared is None:
            return command
        trial_folder = shared_output_folder(self.shared, run.run_id, planned.trial_id, attempt)
        return with_shared_output(command, host, trial_folder, folder)

    def training_command(self, host: Host, spec_json: str) -> Command:
        """Return the command that runs a training on one host until its end."""
        command = self.command(host, "train")
        return replace(command, environment={**command.environment, JOB_SPEC_VARIABLE: spec_json})

    def inspect(self, hosts: Sequence[Host], trials: Sequence[Trial] = ()) -> Mapping[str, Any]:
        """Check model and data, also those of `trials`, on all hosts. Returns the report of `python -m bench inspect`.

        Raises UsageError with the first error, ConfirmationRequired if hosts have different files, and the errors of
        `query_all`.
        """
        if self.profile is not None and not Path(self.workspace).is_dir():
            raise UsageError(
                f"fleet.workspace: {self.workspace}: no such folder",
                remedy="name another, or null for the project's own",
            )
        profile = () if self.profile is None else ("--profile", self.profile)
        arguments = ("inspect", "--model", self.model, "--data", self.data, *profile, "--trials", "-")
        stdin = json.dumps([trial.to_json() for trial in trials]).encode()
        query = lambda host: _run_for_json(host, self.command(host, *arguments), stdin)  # noqa: E731
        first, *others = query_all(hosts, query, self.lost_after_sec, activity=_CHECK)
        for host, inputs in zip(hosts[1:], others, strict=True):
            for name in ("model", "data"):
                if inputs[name]["sha256"] != first[name]["sha256"]:
                    raise ConfirmationRequired(
                        f"{host.name} and {hosts[0].name} have different files at {name}.path: {first[name]['path']}",
                        remedy="copy the same files to all workers, then rerun the command: "
                        "otherwise results are not comparable",
                    )
        return first

    def forecast(self, host: Host, trial: Trial) -> Mapping[str, Any]:
        """Return the host's report of `python -m bench forecast` on a training. Raises like `inspect`."""
        command = self.command(host, "forecast", "--trial", "-", "--cache", f"{host.workdir}/examples")
        stdin = trial.to_text().encode()
        (report,) = query_all(
            [host], lambda host: _run_for_json(host, command, stdin), self.lost_after_sec, activity=_CHECK
        )
        return report

    def sample(self, host: Host) -> Mapping[str, Any]:
        """Return the state of the host's GPUs now, as reported by `python -m bench sample`. Raises HostError."""
        command = self.command(host, "sample")
        completed = check(host, command, host.run(command, timeout_sec=_SAMPLE_TIMEOUT_SEC))
        return parse_json(host, completed.stdout, f"the answer to {command.render()}")

    def run_adapter(
        self, host: Host, command_name: str, request: Mapping[str, Any], on_line: Callable[[str], None]
    ) -> Mapping[str, Any]:
        """Run `python -m bench adapter COMMAND_NAME` and return its result; `on_line` gets each line as it arrives.

        Raises UsageError and ConfirmationRequired with its error line, RetryableError on a full disk, and HostError.
        """
        command = self.command(host, "adapter", command_name, "--cache", f"{host.workdir}/examples")
        results: list[Mapping[str, Any]] = []
        buffer, last_document = bytearray(), b""

        def parse(chunk: bytes) -> None:
            nonlocal last_document
            buffer.extend(chunk)
            *lines, last = bytes(buffer).split(b"\n")
            buffer[:] = last
            for line in lines:
                try:
                    document = schema.parse_object(line) if line.startswith(b"{") else {}
                except ValueError:  # other output of the process
                    continue
                last_document = line
                if "say" in document:
                    on_line(str(document["say"]))
                if "found" in document:
                    results.append(document["found"])

        stdin = json.dumps(request).encode()
        completed = host.run(command, stdin=stdin, on_stdout=parse, timeout_sec=_ADAPTER_TIMEOUT_SEC)
        if completed.exit_code == ExitCode.NOT_WRITTEN:
            raise RetryableError(f"{host.name}: {_last_line(completed)}", remedy="free space there, then rerun")
        if completed.exit_code != 0:
            raise _to_error(host, command, completed, last_document)
        if not results:  # a transport that loses a stream may still report success
            raise HostUnreachable(f"{host.name}: output of {command.render()} is truncated")
        return results[-1]


def bench_program(settings: Settings) -> BenchProgram:
    """Return the program on the fleet's workers."""
    fleet, connector = settings.fleet, settings.connector
    return BenchProgram(
        workspace=str(settings.workspace),
        threads=fleet.pods.threads if connector.is_cluster else fleet.local.threads,
        shared=settings.shared_results,
        model=settings.model.path,
        data=settings.data.path,
        profile=settings.bench.profile if connector.is_local else None,
        lost_after_sec=fleet.lost_after_sec,
    )


def _run_for_json(host: Host, command: Command, stdin: bytes | None = None) -> Mapping[str, Any]:
    """Run the command and parse the JSON that it prints. Raises UsageError with its error line, and HostError."""
    completed = host.run(command, stdin=stdin, timeout_sec=_INSPECT_TIMEOUT_SEC)
    if completed.exit_code != 0:
        raise _to_error(host, command, completed, completed.stdout)
    return parse_json(host, completed.stdout, f"the answer to {command.render()}")


def _to_error(host: Host, command: Command, completed: Completed, output: bytes) -> Exception:
    """Return the error for a failed command of the bench, from its `output`, else from standard error."""
    if completed.exit_code > 128:  # killed by a signal (eviction, OOM killer), not a usage error
        return CommandFailed(host.name, command, completed)
    if (failed := read_failure(output)) is not None:
        code, failure = failed
        return error_class(code.exit_code).from_error(failure, prefix=f"{host.name}: ")
    return UsageError(f"{host.name}: {_last_line(completed) or f'exit {completed.exit_code}: {command.render()}'}")


def _last_line(completed: Completed) -> str:
    lines = completed.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
