"""`inv status`, `inv shell`, `inv logs`: the pods, a shell in one, their logs."""

import re
import subprocess
import sys
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.finding import grouped_lines
from remote.cluster.diagnosis.pods import is_ready
from remote.cluster.diagnosis.readiness import PodFleet, build_fleet
from remote.cluster.labels import PART_OF, label
from remote.hosts.pods.kubectl import not_installed_error
from remote.hosts.pods.pod_index import INDEX_LABEL
from tasks.cli.terminal import console, json_output
from tasks.clients.cluster import open_cluster
from tasks.cluster.checks import EXEC_PERMISSIONS, require_permissions
from tasks.cluster.wait import pod_table
from tasks.errors import TaskFailed, UsageError
from tasks.settings.load import load

_MAX_LINE_CHARS = 1 << 16


def show_status(context: Context, *, as_json: bool) -> None:
    with json_output(as_json) as print_json, open_cluster(load(context)) as cluster:
        screen = console()
        jobs = cluster.list_fleet_objects("Job")
        sets = cluster.list_fleet_objects("JobSet")
        if not jobs and not sets:
            raise TaskFailed(f"nothing is deployed in namespace {cluster.target.namespace}", remedy="`inv deploy`")
        pods, claims = cluster.pods(), cluster.list_fleet_objects("PersistentVolumeClaim")
        state = build_fleet(jobs, pods, claims, [])
        if not state.is_up:
            state = build_fleet(jobs, pods, claims, cluster.events(), cluster.provider)
        for claim in claims:
            phase = claim.get("status", {}).get("phase", "?")
            screen.print(f"volume claim {claim['metadata']['name']}: {phase}")
        if state.rows:
            screen.print(pod_table(state))
        for line in grouped_lines(state.all_findings):
            screen.print(f"  {line}")
        if sets and not jobs:
            names = ", ".join(job_set["metadata"]["name"] for job_set in sets)
            screen.print(f"jobset {names}: its controller has not created a Job yet")
        screen.print(f"{state.up_count} of {len(state.rows)} pods are up")
        print_json(to_document(state))


def to_document(state: PodFleet) -> dict[str, Any]:
    """Return the deployment's state as JSON for programs; docs/reference.md describes the fields."""
    return {
        "kind": "status",
        "schema_version": 1,
        "up": state.up_count,
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
        "findings": [finding.to_dict() for finding in state.all_findings],
    }


def open_shell(context: Context, pod: str | None) -> None:
    settings = load(context)
    with open_cluster(settings) as cluster:
        require_permissions(cluster, EXEC_PERMISSIONS)
        name = find_pod_name(cluster, pod)
        terminal = ("--stdin", "--tty") if sys.stdin.isatty() else ("--stdin",)
        command = ("sh", "-c", "command -v bash >/dev/null && exec bash || exec sh")
        print(f"pod {name}", flush=True)
        container = f"--container={settings.fleet.pods.container}"
        code = _run_interactive(cluster.kubectl.argv("exec", *terminal, container, name, "--", *command))
        if code != 0:
            raise Exit(code=code)  # exit code of the last command in the shell, which printed its own message


def show_logs(context: Context, pod: str | None, *, follow: bool, previous: bool, tail: int) -> None:
    settings = load(context)
    flags = [f"--tail={tail}", *(["--follow"] if follow else []), *(["--previous"] if previous else [])]
    with open_cluster(settings) as cluster:
        name = find_pod_name(cluster, pod)
        if pod is None:
            flags += [f"--selector={PART_OF}", "--prefix", "--max-log-requests=64"]
        else:
            flags += [name, f"--container={settings.fleet.pods.container}"]
        try:
            code = _run_piped(cluster.kubectl.argv("logs", *flags))
        except KeyboardInterrupt:
            if follow:
                return  # the usual way to stop following
            raise
        if code != 0:
            raise TaskFailed(f"kubectl logs ended with exit {code}", remedy="see `inv status`")


def find_pod_name(cluster: Cluster, name_or_index: str | None) -> str:
    """Return the pod with this name or index; by default the first Ready one. Raises UsageError."""
    pods = sorted(cluster.pods(), key=lambda pod: (not is_ready(pod), str(pod["metadata"]["name"])))
    names = [str(pod["metadata"]["name"]) for pod in pods]
    if not pods:
        raise UsageError("no pod is deployed", remedy="`inv deploy` creates them")
    if name_or_index is None:
        return names[0]
    if re.fullmatch(r"\d+", name_or_index):
        matching = [pod for pod in pods if label(pod, INDEX_LABEL) == name_or_index]
        if matching:
            return str(matching[0]["metadata"]["name"])
    if name_or_index in names:
        return name_or_index
    raise UsageError(f"there is no pod {name_or_index!r}", remedy=f"choose {', '.join(names)}, or an index (0, 1, ...)")


def _run_piped(argv: tuple[str, ...]) -> int:
    """Run kubectl, print its untrusted output through our sanitized stream, and return its exit code."""
    try:
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, errors="replace") as process:
            assert process.stdout is not None  # noqa: S101 - for the type checker
            try:
                while line := process.stdout.readline(_MAX_LINE_CHARS):
                    print(line, end="", flush=True)
            except BaseException:  # Ctrl-C, or a closed pipe
                process.terminate()
                raise
        return process.returncode
    except OSError as error:
        raise not_installed_error(error) from error


def _run_interactive(argv: tuple[str, ...]) -> int:
    """Run kubectl on this terminal and return its exit code."""
    try:
        return subprocess.run(argv, check=False).returncode
    except OSError as error:
        raise not_installed_error(error) from error
