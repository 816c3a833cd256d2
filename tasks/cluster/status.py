"""`inv status`, `inv shell`, `inv logs`: looking at the pods, and into them."""

from __future__ import annotations

import subprocess
import sys

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from tasks.errors import TaskFailed, UsageError


@task
def status(context: Context) -> None:
    """Show every pod, and what is wrong with those not up."""
    from remote.cluster.diagnosis.finding import together
    from remote.cluster.diagnosis.readiness import fleet
    from tasks.cluster.wait import table
    from tasks.connect.cluster import cluster_of, console
    from tasks.settings import load as house

    settings, screen = house.load(context), console()
    with cluster_of(settings) as cluster:
        jobs = cluster.list_of("Job")
        sets = cluster.list_of("JobSet")
        if not jobs and not sets:
            raise TaskFailed(f"nothing is deployed in namespace {cluster.target.namespace}; `inv deploy`")
        pods, claims = cluster.pods(), cluster.list_of("PersistentVolumeClaim")
        state = fleet(jobs, pods, claims, [])
        if not state.is_up:
            state = fleet(jobs, pods, claims, cluster.events())
        for claim in claims:
            phase = claim.get("status", {}).get("phase", "?")
            screen.print(f"volume claim {claim['metadata']['name']}: {phase}", markup=False, highlight=False)
        if state.rows:
            screen.print(table(state))
        for line in together(state.all_findings):
            screen.print(f"  {line}", markup=False, highlight=False)
        if sets and not jobs:
            names = ", ".join(one["metadata"]["name"] for one in sets)
            screen.print(f"jobset {names}: its controller has made no Job yet", markup=False, highlight=False)
        screen.print(f"{state.up} of {len(state.rows)} pods are up", markup=False, highlight=False)


@task(help={"pod": "a pod's name, or its index (default: the first that is Ready)"})
def shell(context: Context, pod: str | None = None) -> None:
    """Open a shell in a pod, or run there what standard input says."""
    from remote.cluster.kinds import POD
    from tasks.connect.cluster import cluster_of, pod_name
    from tasks.settings import load as house

    settings = house.load(context)
    with cluster_of(settings) as cluster:
        missing = [verb for verb in ("get", "create") if not cluster.allowed(verb, POD, "exec")]
        if missing:
            raise UsageError(
                f"user {cluster.target.user} may not {' and '.join(missing)} pods/exec in namespace "
                f"{cluster.target.namespace}; ask the cluster's administrator (manifests/base/access.yaml has the role)"
            )
        name = pod_name(cluster, pod)
        terminal = ("--stdin", "--tty") if sys.stdin.isatty() else ("--stdin",)
        command = ("sh", "-c", "command -v bash >/dev/null && exec bash || exec sh")
        print(f"pod {name}", flush=True)
        container = f"--container={settings.fleet.pods.container}"
        code = _hand_over(cluster.kubectl.argv("exec", *terminal, container, name, "--", *command))
        if code != 0:
            raise Exit(code=code)  # the last command's own; whoever typed it has seen why


@task(
    help={
        "pod": "a pod's name, or its index (default: all of them, each line with its pod)",
        "follow": "go on until Ctrl-C",
        "previous": "of the container that ran before the last restart",
        "tail": "only the last lines, as many as this (default: 100)",
    },
)
def logs(
    context: Context, pod: str | None = None, follow: bool = False, previous: bool = False, tail: str = "100"
) -> None:
    """Show what the pods themselves have written.

    A trial's own log comes with `inv collect`.
    """
    from tasks.connect.cluster import cluster_of, pod_name
    from tasks.settings import load as house

    settings = house.load(context)
    if not tail.isdecimal():
        raise UsageError(f"logs: --tail: expected a number of lines, found {tail!r}")
    flags = [f"--tail={tail}", *(["--follow"] if follow else []), *(["--previous"] if previous else [])]
    with cluster_of(settings) as cluster:
        name = pod_name(cluster, pod)
        if pod is None:
            from remote.cluster.labels import PART_OF

            flags += [f"--selector={PART_OF}", "--prefix", "--max-log-requests=64"]
        else:
            flags += [name, f"--container={settings.fleet.pods.container}"]
        try:
            code = _hand_over(cluster.kubectl.argv("logs", *flags))
        except KeyboardInterrupt:
            if follow:
                return  # how one leaves
            raise
        if code != 0:
            raise TaskFailed(f"kubectl logs ended with exit {code}; `inv status` says how the pods are")


def _hand_over(argv: tuple[str, ...]) -> int:
    """Run kubectl on this very terminal; its exit code."""
    try:
        return subprocess.run(argv, check=False).returncode
    except OSError as error:
        from remote.cluster.kubectl import not_installed

        raise not_installed(error) from None
