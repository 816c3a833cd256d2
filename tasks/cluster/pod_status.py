"""`inv status`, `inv logs`: the pods, their logs.

Wait for pods, with a live view of each. A pod that cannot start ends the wait with reason and remedy.
"""

import codecs
import math
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from invoke.context import Context
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.records.status import join_remedy
from remote.cluster.diagnosis.finding import Diagnosis, grouped_lines
from remote.cluster.diagnosis.pods import LOGIN_CAUSES, MAX_BACK_OFF_SEC, is_ready
from remote.cluster.diagnosis.readiness import PodFleet
from remote.cluster.labels import PART_OF, label
from remote.cluster.namespace_client import Cluster
from remote.hosts.pods.kubectl import Unreachable, run_kubectl, to_cluster_error
from remote.hosts.pods.pod_index import INDEX_LABEL
from tasks.cli import terminal
from tasks.cli.command_result import CommandResult
from tasks.cli.terminal import console
from tasks.cli.waiting import Wait
from tasks.clients.target_cluster import open_cluster
from tasks.errors import RetryableError, TaskFailed, UsageError
from tasks.settings.layers import load

_POLL_SEC = 2.0  # a poll is four requests for all pods together
_MAX_SILENCE_SEC = 60.0  # longer than a restart of the API server
_MAX_LOG_CHUNKS = 10_000  # for --json


def wait_for_pods(cluster: Cluster, jobs: Collection[str], limit: float, *, new_login: bool = False) -> None:
    """Wait until all pods of the Jobs with these names are up, for `limit` seconds.

    Raises TaskFailed with the reason as soon as waiting is pointless. `new_login`: the pull secret is new, and the pods
    may still report that the old one was rejected.
    """
    started = answered = time.monotonic()
    policy = WaitPolicy(login_sec=MAX_BACK_OFF_SEC if new_login else 0.0)
    with PodsWait() as view:
        while True:
            now = time.monotonic()
            try:
                state = cluster.pod_fleet(jobs)
            except Unreachable as error:
                if now - answered > _MAX_SILENCE_SEC:
                    problem = f"{error} (silent for {now - answered:.0f} s)"
                    raise RetryableError(problem, remedy="`inv deploy` resumes") from error
                time.sleep(_POLL_SEC)
                continue
            answered = now
            view.update(state)
            if state.is_up:
                break
            if (expired := policy.expired_finding(state.all_findings, now)) is not None:
                retry = "" if "`inv deploy" in expired.remedy else "then `inv deploy`"
                problem = f"{_progress(state)}: {expired.problem}"
                raise TaskFailed(problem, remedy=join_remedy(expired.remedy, retry))
            if now - started > limit:
                reason = "".join(f": {finding}" for finding in state.all_findings[:1])
                problem = f"{_progress(state)} after {now - started:.0f} s{reason}"
                raise RetryableError(problem, remedy="`inv deploy` continues to wait")
            time.sleep(min(_POLL_SEC, limit))
    terminal.console().print(f"{_progress(state)}, after {time.monotonic() - started:.0f} s")


class PodsWait(Wait):
    """The table of the pods on a terminal; elsewhere a line for each change, and after a silence their number."""

    def __init__(self) -> None:
        super().__init__("the pods")
        self._state: PodFleet | None = None
        self._printed = set[str]()

    def update(self, state: PodFleet) -> None:
        self._state = state
        self.set_text(_progress(state))
        lines = [f"{row.job}[{row.index}] {row.pod or '-'} {row.node or '-'} {row.state}" for row in state.rows]
        for line in (*lines, *(f"  {line}" for line in grouped_lines(state.all_findings))):
            if self._is_plain and line not in self._printed:
                self._print(Text(line))
            self._printed.add(line)

    def render(self) -> RenderableType:
        if self._state is None:
            return super().render()
        findings = (Text(f"  {line}") for line in grouped_lines(self._state.all_findings))
        return Group(pod_table(self._state), *findings, self.summary())


class WaitPolicy:
    """Age of each finding. A finding that lasts longer than its patience ends the wait.

    `login_sec`: the minimum patience for a rejected login.
    """

    def __init__(self, login_sec: float = 0.0) -> None:
        self._login_sec = login_sec
        self._since: dict[tuple[str, str], float] = {}

    def expired_finding(self, findings: Sequence[Diagnosis], now: float) -> Diagnosis | None:
        """Return the first finding that has lasted too long. A finding that was absent starts again at zero."""
        keys = {(finding.subject, finding.cause) for finding in findings}
        self._since = {key: self._since.get(key, now) for key in keys}
        return next((finding for finding in findings if self._deadline(finding) <= now), None)

    def _deadline(self, finding: Diagnosis) -> float:
        if finding.patience_sec is None:
            return float("inf")
        min_sec = self._login_sec if finding.cause in LOGIN_CAUSES else 0.0
        return self._since[finding.subject, finding.cause] + max(finding.patience_sec, min_sec)


def pod_table(state: PodFleet) -> Table:
    """Return a table of all pods with node and state."""
    table = terminal.plain_table("job", "index", "pod", "node", "state")
    for row in state.rows:
        style = "green" if row.is_up else "red" if row.findings else "yellow"
        cells = (row.job, str(row.index), row.pod or "-", row.node or "-")
        table.add_row(*map(Text, cells), Text(row.state, style=style))
    return table


def _progress(state: PodFleet) -> str:
    return f"{state.up_count} of {len(state.rows)} pods are up"


def show_status(context: Context) -> CommandResult:
    with open_cluster(load(context)) as cluster:
        screen = console()
        state, sets = cluster.pod_fleet(), cluster.list_fleet_objects("JobSet")
        if not state.rows and not sets:
            raise TaskFailed(f"nothing is deployed in namespace {cluster.target.namespace}", remedy="`inv deploy`")
        for claim in cluster.list_fleet_objects("PersistentVolumeClaim"):
            phase = claim.get("status", {}).get("phase", "?")
            screen.print(f"volume claim {claim['metadata']['name']}: {phase}")
        if state.rows:
            screen.print(pod_table(state))
        for line in grouped_lines(state.all_findings):
            screen.print(f"  {line}")
        if not state.rows:
            names = ", ".join(job_set["metadata"]["name"] for job_set in sets)
            screen.print(f"jobset {names}: its controller has not created a Job yet")
        screen.print(_progress(state))
        return CommandResult(data=to_document(state))


def to_document(state: PodFleet) -> dict[str, Any]:
    """Return the deployment's state as JSON for programs; docs/reference.md describes the fields."""
    return {
        "up": state.up_count,
        "pods": [
            {name: getattr(row, name) or None for name in ("job", "pod", "node")}
            | {"index": row.index, "state": row.state, "is_up": row.is_up}
            for row in state.rows
        ],
        "findings": [finding.to_dict() for finding in state.all_findings],
    }


def show_logs(context: Context, pod: str | None, *, follow: bool, tail: int) -> CommandResult:
    settings = load(context)
    flags = [f"--tail={tail}", *(["--follow"] if follow else [])]
    decoder, lines = codecs.getincrementaldecoder("utf-8")("replace"), deque[str](maxlen=_MAX_LOG_CHUNKS)

    def print_chunk(chunk: bytes) -> None:
        lines.append(decoder.decode(chunk))
        print(lines[-1], end="", flush=True)  # through our streams: the text is untrusted

    with open_cluster(settings) as cluster:
        name = find_pod_name(cluster, pod)
        if pod is None:
            flags += [f"--selector={PART_OF}", "--prefix", "--max-log-requests=64"]
        else:
            flags += [name, f"--container={settings.fleet.pods.container}"]
        try:
            argv = cluster.kubectl.argv("logs", *flags)
            completed = run_kubectl(argv, label="kubectl logs", on_stdout=print_chunk, timeout_sec=math.inf)
        except KeyboardInterrupt:
            if not follow:
                raise
        else:  # Ctrl-C is the usual way to stop following
            if completed.exit_code:
                raise to_cluster_error("kubectl logs", completed.stderr.decode(errors="replace"))
        return CommandResult(data={"pod": None if pod is None else name, "lines": "".join(lines).splitlines()})


def find_pod_name(cluster: Cluster, name_or_index: str | None) -> str:
    """Return the pod with this name or index; by default the first Ready one. Raises UsageError."""
    pods = sorted(cluster.pods(), key=lambda pod: (not is_ready(pod), str(pod["metadata"]["name"])))
    names = [str(pod["metadata"]["name"]) for pod in pods]
    if not pods:
        raise UsageError("no pod is deployed", remedy="`inv deploy` creates them")
    if name_or_index is None:
        return names[0]
    for name, pod in zip(names, pods, strict=True):
        if name_or_index in (name, label(pod, INDEX_LABEL)):
            return name
    raise UsageError(f"there is no pod {name_or_index!r}", remedy=f"choose {', '.join(names)}, or an index (0, 1, ...)")
