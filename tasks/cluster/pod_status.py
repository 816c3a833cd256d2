"""`inv status`: the pods.

Wait for pods, with a live view of each. A pod that cannot start ends the wait with reason and remedy.
"""

import time
from collections.abc import Collection, Sequence
from typing import Any

from invoke.context import Context
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.records.status import join_remedy
from remote.cluster.diagnosis.finding import Diagnosis, grouped_lines
from remote.cluster.diagnosis.pods import LOGIN_CAUSES, MAX_BACK_OFF_SEC
from remote.cluster.diagnosis.readiness import PodFleet
from remote.cluster.namespace_client import Cluster
from remote.hosts.pods.kubectl import Unreachable
from tasks.cli import terminal
from tasks.cli.command_result import CommandResult
from tasks.cli.terminal import console
from tasks.cli.waiting import Wait
from tasks.clients.target_cluster import open_cluster
from tasks.errors import RetryableError, TaskFailed
from tasks.settings.layers import load

_POLL_SEC = 2.0  # a poll is four requests for all pods together
_MAX_SILENCE_SEC = 60.0  # longer than a restart of the API server


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
