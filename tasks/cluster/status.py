"""`inv status`, `inv shell`, `inv logs`: the pods, a shell in one, their logs."""

import re
import subprocess
import sys
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.finding import together
from remote.cluster.diagnosis.pods import is_ready
from remote.cluster.diagnosis.readiness import PodFleet, fleet
from remote.cluster.kubectl import not_installed
from remote.cluster.labels import INDEX_LABEL, PART_OF, label
from tasks.cli.terminal import console, for_programs
from tasks.clients.cluster import cluster_of
from tasks.cluster.checks import EXEC, require_rights
from tasks.cluster.wait import table
from tasks.errors import TaskFailed, UsageError
from tasks.settings.load import load

_LONGEST_LINE = 1 << 16


def show_status(context: Context, *, as_json: bool) -> None:
    with for_programs(as_json) as say, cluster_of(load(context)) as cluster:
        screen = console()
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
            screen.print(f"volume claim {claim['metadata']['name']}: {phase}")
        if state.rows:
            screen.print(table(state))
        for line in together(state.all_findings):
            screen.print(f"  {line}")
        if sets and not jobs:
            names = ", ".join(set["metadata"]["name"] for set in sets)
            screen.print(f"jobset {names}: its controller has made no Job yet")
        screen.print(f"{state.up} of {len(state.rows)} pods are up")
        say(document(state))


def document(state: PodFleet) -> dict[str, Any]:
    """What is deployed, for programs; docs/reference.md says what the fields are."""
    return {
        "kind": "status",
        "schema_version": 1,
        "up": state.up,
        "pods": [
            {
                "job": row.job,
                "index": row.index,
                "pod": row.pod,
                "node": row.node or None,
                "state": row.state,
                "is_up": row.is_up,
                "restarts": row.restarts,
            }
            for row in state.rows
        ],
        "findings": [found.document() for found in state.all_findings],
    }


def open_shell(context: Context, pod: str | None) -> None:
    settings = load(context)
    with cluster_of(settings) as cluster:
        require_rights(cluster, EXEC)
        name = pod_name(cluster, pod)
        terminal = ("--stdin", "--tty") if sys.stdin.isatty() else ("--stdin",)
        command = ("sh", "-c", "command -v bash >/dev/null && exec bash || exec sh")
        print(f"pod {name}", flush=True)
        container = f"--container={settings.fleet.pods.container}"
        code = _hand_over(cluster.kubectl.argv("exec", *terminal, container, name, "--", *command))
        if code != 0:
            raise Exit(code=code)  # of the last command in that shell, whose message was seen


def show_logs(context: Context, pod: str | None, *, follow: bool, previous: bool, tail: str) -> None:
    settings = load(context)
    if not tail.isdecimal():
        raise UsageError(f"logs: --tail: expected a number of lines, found {tail!r}")
    flags = [f"--tail={tail}", *(["--follow"] if follow else []), *(["--previous"] if previous else [])]
    with cluster_of(settings) as cluster:
        name = pod_name(cluster, pod)
        if pod is None:
            flags += [f"--selector={PART_OF}", "--prefix", "--max-log-requests=64"]
        else:
            flags += [name, f"--container={settings.fleet.pods.container}"]
        try:
            code = _show(cluster.kubectl.argv("logs", *flags))
        except KeyboardInterrupt:
            if follow:
                return  # the usual way to leave
            raise
        if code != 0:
            raise TaskFailed(f"kubectl logs ended with exit {code}; see `inv status`")


def pod_name(cluster: Cluster, asked: str | None) -> str:
    """The pod of this name, or of this index; the first Ready one where none is asked for. Raises UsageError."""
    pods = sorted(cluster.pods(), key=lambda pod: (not is_ready(pod), str(pod["metadata"]["name"])))
    names = [str(pod["metadata"]["name"]) for pod in pods]
    if not pods:
        raise UsageError("no pod is deployed; `inv deploy` makes them")
    if asked is None:
        return names[0]
    if re.fullmatch(r"\d+", asked):
        of_index = [pod for pod in pods if label(pod, INDEX_LABEL) == asked]
        if of_index:
            return str(of_index[0]["metadata"]["name"])
    if asked in names:
        return asked
    raise UsageError(f"there is no pod {asked!r}; there are {', '.join(names)}; an index (0, 1, ...) does too")


def _show(argv: tuple[str, ...]) -> int:
    """Run kubectl and print what it brings, which may be anything: through our own output; its exit code."""
    try:
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, errors="replace") as process:
            assert process.stdout is not None  # noqa: S101 - for the type checker
            try:
                while piece := process.stdout.readline(_LONGEST_LINE):
                    print(piece, end="", flush=True)
            except BaseException:  # Ctrl-C, or nobody reads any more
                process.terminate()
                raise
        return process.returncode
    except OSError as error:
        raise not_installed(error) from None


def _hand_over(argv: tuple[str, ...]) -> int:
    """Run kubectl on this terminal; its exit code."""
    try:
        return subprocess.run(argv, check=False).returncode
    except OSError as error:
        raise not_installed(error) from None
