"""The fleet's hosts and their commands, from the settings. No other module knows which kind of host a fleet has."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.records import NODE_COUNT, Trial
from bench.records.paths import CHECKPOINTS_FOLDER, EXIT_NOT_WRITTEN, METRICS_VARIABLE
from bench.records.run import PlannedTrial, RunRecord
from bench.records.trial import RANKED
from remote.cluster.kubeconfig import Target
from remote.cluster.kubectl import Kubectl
from remote.fleet.fetch_result import OUT_FOLDER, TRIAL_FILE
from remote.fleet.gang_agent import GangAgent
from remote.fleet.shared_volume import on_shared_volume, place_of
from remote.fleet.worker import Launch
from remote.hosts.command import Command
from remote.hosts.host import CommandFailed, Completed, Host, HostUnreachable, check, parsed
from remote.hosts.local import LocalHost
from remote.jobs.agent import Agent
from remote.pods.host import PodHost
from remote.pods.pod_index import Pods
from tasks.clients.cluster import announced, identity, target_of
from tasks.clients.worker_queries import query_all
from tasks.errors import ConfirmationRequired, RetryableError, UsageError
from tasks.settings.load import Settings

_SAMPLE_SEC = 15.0
_ADAPTER_SEC = 14_400.0
_INSPECT_SEC = 600.0  # a model of 14 GB without a manifest is hashed in full


def workers(settings: Settings) -> list[Host]:
    """The fleet's hosts, named worker-0, worker-1, ...; where they are pods, the pods with these indices."""
    if settings.fleet.kind == "pods":
        return list(pod_hosts(settings, announced(settings)))
    folder = settings.root / settings.fleet.local.folder
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise UsageError(f"fleet.local.folder: {there} is a file; set it to a folder, or to where one can be made")
    return [LocalHost(name=name, workdir=str(folder / name)) for name in _names(settings)]


def _names(settings: Settings) -> list[str]:
    return [f"worker-{index}" for index in range(settings.fleet.size)]


def pod_hosts(settings: Settings, target: Target, *, starting: bool = False) -> list[PodHost]:
    """The pods of `fleet.pods` in this cluster and namespace as hosts, whatever the fleet is made of.

    `starting`: also those that are not Ready yet.
    """
    pods = settings.fleet.pods
    # By name, even where it is the current context: the current one may change while a run goes on.
    kubectl = Kubectl(namespace=target.namespace, context=target.context, kubeconfig=target.kubeconfig)
    shared_list = Pods(kubectl, pods.selector, starting=starting)
    return [
        PodHost(
            name=name,
            index=index,
            pods=shared_list,
            workdir=pods.scratch,
            container=pods.container,
            python=(pods.python,),
        )
        for index, name in enumerate(_names(settings))
    ]


def pods_of_component(
    settings: Settings, component: str, *, size: int = 1, container: str = "bench", starting: bool = False
) -> list[PodHost]:
    """`size` pods of ours that are no workers, by what they are in the deployment."""
    pods = settings.fleet.pods.model_copy(
        update={"selector": f"app.kubernetes.io/component={component}", "container": container}
    )
    fleet = settings.fleet.model_copy(update={"size": size, "pods": pods})
    return pod_hosts(settings.model_copy(update={"fleet": fleet}), target_of(settings), starting=starting)


@dataclass(frozen=True, kw_only=True)
class WorkerGroup:
    """Hosts with their agents, and the ids of the trials that they run."""

    hosts: list[Host]
    agents: Callable[[Host], Agent]
    trial_ids: frozenset[str]


def crews(settings: Settings, hosts: list[Host], run: RunRecord) -> list[WorkerGroup]:
    """The crews of a run, which work one after the other: every worker by itself, then all workers together.

    Over pods a distributed trial has one rank in each pod, and the first worker of the run's plan leads.
    """
    gangs = [planned for planned in run.planned if is_gang(settings, planned)]
    together = frozenset(planned.trial_id for planned in gangs)
    alone = frozenset(planned.trial_id for planned in run.planned) - together
    made = [WorkerGroup(hosts=hosts, agents=Agent, trial_ids=alone)] if alone or not together else []
    # No more than take part: one that does not would be waited for, too.
    by_name = {host.name: host for host in hosts}
    size = max((planned.trial.world_size for planned in gangs), default=0)
    members = [by_name[name] for name in run.workers if name in by_name][:size]
    if members and isinstance(leader := members[0], PodHost):
        made.append(
            WorkerGroup(hosts=members[:1], agents=lambda _: GangAgent(members, leader.address), trial_ids=together)
        )
    return made


def is_gang(settings: Settings, planned: PlannedTrial) -> bool:
    """Whether a trial takes several workers at once."""
    return settings.fleet.kind == "pods" and planned.trial.kind in RANKED


def refuse_other_fleet(settings: Settings, run: RunRecord) -> None:
    """Raises UsageError where the run was started over another fleet; workers have the same names in all fleets."""
    pairs: dict[str, tuple[str | None, str]] = {"fleet.kind": (run.fleet_kind, settings.fleet.kind)}
    if run.fleet_kind == settings.fleet.kind == "pods":
        before, now = run.provenance.get("cluster", {}), cluster_location(settings)
        pairs |= {f"cluster.{key}": (before.get(key), now[key]) for key in ("context", "namespace")}
        pairs["the cluster at"] = (before.get("server"), now["server"])
    for name, (was, is_now) in pairs.items():
        if was != is_now:
            raise UsageError(f"run {run.run_id} was started with {name}: {was}, found {is_now}; set it as it was")


def cluster_location(settings: Settings) -> dict[str, str]:
    """For a run's provenance: which cluster its pods are in; empty for a fleet on this machine."""
    if settings.fleet.kind != "pods":
        return {}
    return identity(target_of(settings))


def launcher(settings: Settings, run_id: str, *, strict: bool = False) -> Launch:
    """How a trial is started on a host: `python -m bench run` in the fleet's workspace."""

    shared = settings.shared_results
    checkpoints = checkpoints_at(settings, run_id)

    watched = metrics_of(settings)

    def launch(host: Host, planned: PlannedTrial, attempt: int, folder: str) -> Command:
        command = _bench(
            settings,
            host,
            *("run", "--trial", f"{folder}/{TRIAL_FILE}", "--out", f"{folder}/{OUT_FOLDER}"),
            *("--trial-id", planned.trial_id, "--worker", host.name),
            *("--run-id", run_id, "--attempt", str(attempt)),
            *(["--strict"] if strict else []),
            *(["--checkpoints", checkpoints(host.workdir)] if planned.trial.training is not None else []),
        )
        if host.name in watched:
            command = replace(command, environment={**command.environment, METRICS_VARIABLE: watched[host.name]})
        if is_gang(settings, planned):
            count = {NODE_COUNT: str(planned.trial.world_size)}
            command = replace(command, environment={**command.environment, **count})
        if shared is None:
            return command
        place = place_of(shared, run_id, planned.trial_id, attempt)
        return on_shared_volume(command, host, place, folder)

    return launch


def metrics_of(settings: Settings) -> dict[str, str]:
    """What METRICS_VARIABLE is for each worker, by its name; empty where nobody asked for metrics.

    Pods have an address each, workers on this machine a port each, which only this machine can ask.
    """
    first, is_local = settings.metrics.port, settings.fleet.kind == "local"
    if first is None:
        return {}
    price = {"usd_per_gpu_hour": settings.cost.price_usd_per_gpu_hour}
    return {
        name: json.dumps({"host": "127.0.0.1" if is_local else "", "port": first + is_local * index, **price})
        for index, name in enumerate(_names(settings))
    }


def checkpoints_at(settings: Settings, run_id: str) -> Callable[[str], str]:
    """From a host's workdir to the folder of a training's checkpoints: on the shared volume, where there is one."""
    shared = settings.shared_results
    return lambda workdir: f"{shared or f'{workdir}/runs'}/{run_id}/{CHECKPOINTS_FOLDER}"


def inspect(settings: Settings, hosts: Sequence[Host], trials: Sequence[Trial] = ()) -> Mapping[str, Any]:
    """The model and data that all hosts would use, as `python -m bench inspect` reports them, and whether these
    trials' own inputs can be used there.

    Raises UsageError with the first complaint, Refused where hosts have different files, and as `answers` does.
    """
    is_local = settings.fleet.kind == "local"
    if is_local and not settings.workspace.is_dir():
        raise UsageError(
            f"fleet.workspace: {settings.workspace}: no such folder; name another, or null for the project's own"
        )
    # Not asked of pods: they have their node's GPU, and the bench in an older image may not know the flag.
    profile = ("--profile", settings.bench.profile) if is_local else ()
    words, listed = ("inspect", *_inputs(settings), *profile), _listed(trials)

    def ask(host: Host) -> Mapping[str, Any]:
        try:
            return _answer(host, _bench(settings, host, *words, "--trials", "-"), listed)
        except UsageError as error:
            if is_local or "unrecognized arguments: --trials" not in str(error):
                raise
            return _answer(host, _bench(settings, host, *words))  # the bench in an older image

    first, *others = query_all(settings, hosts, ask)
    for host, inputs in zip(hosts[1:], others, strict=True):
        for what in ("model", "data"):
            if inputs[what]["sha256"] != first[what]["sha256"]:
                raise ConfirmationRequired(
                    f"{host.name} and {hosts[0].name} have different files at {what}.path: {first[what]['path']}; "
                    "their results could not be compared; make them the same, then type the same again"
                )
    return first


def survey(settings: Settings, host: Host, trials: Sequence[Trial]) -> Mapping[str, Any]:
    """What `python -m bench survey` reports of the host's GPU, the data and these trials. Raises as `inspect` does."""
    command = _bench(settings, host, "survey", *_inputs(settings), "--trials", "-")
    return query_all(settings, [host], lambda one: _answer(one, command, _listed(trials)))[0]


def forecasts(settings: Settings, hosts: Sequence[Host], trial: Trial) -> list[Mapping[str, Any]]:
    """What `python -m bench forecast` says of a training on each of these hosts. Raises as `inspect`."""

    def ask(host: Host) -> Mapping[str, Any]:
        command = _bench(settings, host, "forecast", "--trial", "-", "--cache", f"{host.workdir}/examples")
        return _answer(host, command, trial.to_text().encode())

    return query_all(settings, hosts, ask)


def adapter_work(
    settings: Settings, host: Host, what: str, wish: Mapping[str, Any], hear: Callable[[str], None]
) -> Mapping[str, Any]:
    """What `python -m bench adapter WHAT` found; `hear` gets its words as they come.

    Raises UsageError and Refused with its one line of complaint, Resumable where the same request goes on, HostError.
    """
    command = _bench(settings, host, "adapter", what, "--cache", f"{host.workdir}/examples")
    found: list[Mapping[str, Any]] = []
    rest = bytearray()

    def take(piece: bytes) -> None:
        rest.extend(piece)
        *lines, last = bytes(rest).split(b"\n")
        rest[:] = last
        for line in lines:
            try:
                document = json.loads(line) if line.startswith(b"{") else {}
            except ValueError:  # something else that the process printed
                continue
            if "say" in document:
                hear(str(document["say"]))
            if "found" in document:
                found.append(document["found"])

    stdin = json.dumps(wish).encode()
    completed = host.run(command, stdin=stdin, on_stdout=take, timeout_sec=_ADAPTER_SEC)
    if completed.exit_code == EXIT_NOT_WRITTEN:
        raise RetryableError(f"{host.name}: {_last_line(completed)}; make room, then type the same again: it goes on")
    if completed.exit_code != 0:
        raise _complaint(host, command, completed)
    if not found:  # a transport that loses a stream may still report success
        raise HostUnreachable(f"{host.name}: the answer to {command.render()} was cut short")
    return found[-1]


def sample(settings: Settings, host: Host) -> Mapping[str, Any]:
    """What the host's GPUs are doing now, as `python -m bench sample` reports it. Raises HostError."""
    command = _bench(settings, host, "sample")
    completed = check(host, command, host.run(command, timeout_sec=_SAMPLE_SEC))
    return _document(host, command, completed)


def _document(host: Host, command: Command, completed: Completed) -> dict[str, Any]:
    """A transport that loses a stream may still report success. Raises HostUnreachable then."""
    document: dict[str, Any] = parsed(host, completed.stdout, f"the answer to {command.render()}")
    return document


def _bench(settings: Settings, host: Host, *arguments: str) -> Command:
    fleet = settings.fleet
    threads = str(fleet.pods.threads if fleet.kind == "pods" else fleet.local.threads)
    return Command(
        argv=(*host.python, "-m", "bench", *arguments),
        # Without these every worker starts as many threads as there are cores, and all of them are slow.
        environment={
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",  # as in `remote.hosts.bundle`
        },
        folder=str(settings.workspace),
    )


def _listed(trials: Sequence[Trial]) -> bytes:
    return json.dumps([trial.to_json() for trial in trials]).encode()


def _inputs(settings: Settings) -> tuple[str, ...]:
    return ("--model", settings.model.path, "--data", settings.data.path)


def _answer(host: Host, command: Command, stdin: bytes | None = None) -> Mapping[str, Any]:
    """The JSON document that the command prints. Raises UsageError with its one line of complaint, and HostError."""
    completed = host.run(command, stdin=stdin, timeout_sec=_INSPECT_SEC)
    if completed.exit_code != 0:
        raise _complaint(host, command, completed)
    return _document(host, command, completed)


def _complaint(host: Host, command: Command, completed: Completed) -> Exception:
    """A command of the bench that did not succeed, as the error that fits its exit code."""
    if completed.exit_code > 128:  # killed by a signal (eviction, OOM killer); no setting is wrong
        return CommandFailed(host.name, command, completed)
    kind = ConfirmationRequired if completed.exit_code == 4 else UsageError
    return kind(f"{host.name}: {_last_line(completed) or f'exit {completed.exit_code}: {command.render()}'}")


def _last_line(completed: Completed) -> str:
    lines = completed.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
