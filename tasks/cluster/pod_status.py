"""`inv status`, `inv shell`, `inv logs`: the pods, a shell in one, their logs.

Wait for pods, with a live view of each. A pod that cannot start ends the wait with reason and remedy.
"""

import math
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.records.status import join_remedy
from remote.cluster.diagnosis.finding import Diagnosis, grouped_lines
from remote.cluster.diagnosis.pods import LOGIN_CAUSES, MAX_BACK_OFF_SEC, is_ready
from remote.cluster.diagnosis.readiness import PodFleet
from remote.cluster.labels import PART_OF, label
from remote.cluster.namespace_client import Cluster
from remote.hosts.local_program import CannotStart, run_program
from remote.hosts.pods.kubectl import ClusterError, Unreachable, not_installed_error
from remote.hosts.pods.pod_index import INDEX_LABEL
from tasks.cli import terminal
from tasks.cli.command_result import CommandResult
from tasks.cli.terminal import console
from tasks.cli.waiting import Wait
from tasks.clients.target_cluster import open_cluster
from tasks.cluster.checks import EXEC_PERMISSIONS, require_permissions
from tasks.errors import RetryableError, TaskFailed, UsageError
from tasks.settings.layers import load

# A poll is four requests for all pods together. Between polls a watch reports changes of pods. Without a change the
# next poll follows after _POLL_SEC, for everything else: events, rejected pods, claims. Changes in quick succession
# share one poll.
_POLL_SEC, _BATCH_SEC, _RETRY_SEC = 15.0, 0.5, 1.0
_MAX_SILENCE_SEC = 60.0  # longer than a restart of the API server


def wait_for_pods(
    cluster: Cluster, jobs: Collection[str], limit: float, *, plain: bool, new_login: bool = False
) -> None:
    """Wait until all pods of the Jobs with these names are up, for `limit` seconds.

    Raises TaskFailed with the reason as soon as waiting is pointless. `new_login`: the pull secret is new, and the pods
    may still report that the old one was rejected.
    """
    started = answered = time.monotonic()
    policy = WaitPolicy(login_sec=MAX_BACK_OFF_SEC if new_login else 0.0)
    old_events: Mapping[object, str | Diagnosis] = {}
    with PodsWait(plain=plain) as view:
        while True:
            now = time.monotonic()
            try:
                state = cluster.pod_fleet(jobs)
                answered = now
            except Unreachable as error:
                silence_sec = now - answered
                if silence_sec > _MAX_SILENCE_SEC:
                    raise RetryableError(
                        f"{error} (silent for {silence_sec:.0f} s)", remedy="`inv deploy` resumes"
                    ) from error
                time.sleep(_RETRY_SEC)
                continue
            events = _events(state)
            view.update(state, _lines([events[key] for key in events if key not in old_events]))
            old_events = events
            if state.is_up:
                break
            expired = policy.expired_finding(state.all_findings, now)
            if expired is not None:
                retry = "" if "`inv deploy" in expired.remedy else "then `inv deploy`"
                problem = f"{_progress(state)}: {expired.problem}"
                raise TaskFailed(problem, remedy=join_remedy(expired.remedy, retry))
            elapsed_sec = now - started
            if elapsed_sec > limit:
                first = next(iter(state.all_findings), None)
                reason = f": {first}" if first is not None else ""
                raise RetryableError(
                    f"{_progress(state)} after {elapsed_sec:.0f} s{reason}",
                    remedy="`inv deploy` continues to wait",
                )
            timeout_sec = min(_POLL_SEC, limit - elapsed_sec, policy.remaining_sec(state.all_findings, now))
            _wait_for_change(cluster, timeout_sec)
    terminal.console().print(f"{_progress(state)}, after {time.monotonic() - started:.0f} s")


class PodsWait(Wait):
    """The table of the pods on a terminal; elsewhere a line for each change, and after a silence their number."""

    def __init__(self, *, plain: bool) -> None:
        super().__init__("the pods", plain=plain)
        self._state: PodFleet | None = None

    def update(self, state: PodFleet, news: Sequence[str]) -> None:
        self._state = state
        self.set_text(_progress(state))
        for line in news if self._is_plain else ():
            self._print(Text(line))

    def render(self) -> RenderableType:
        if self._state is None:
            return super().render()
        findings = (Text(f"  {line}") for line in grouped_lines(self._state.all_findings))
        return Group(pod_table(self._state), *findings, self.summary())


def _wait_for_change(cluster: Cluster, timeout_sec: float) -> None:
    """Sleep until a pod changes, at most for `timeout_sec`, then for _BATCH_SEC to include further changes."""
    try:
        cluster.wait_for_change(max(1.0, timeout_sec))
    except ClusterError:
        time.sleep(_RETRY_SEC)  # the next poll reports the error
    time.sleep(_BATCH_SEC)


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

    def remaining_sec(self, findings: Sequence[Diagnosis], now: float) -> float:
        """Return the seconds until the first of these findings has lasted too long."""
        return min(map(self._deadline, findings), default=float("inf")) - now

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


def _events(state: PodFleet) -> dict[object, str | Diagnosis]:
    """Return each pod's line and each finding, by a key that does not depend on the text of a finding."""
    rows: dict[object, str | Diagnosis] = {
        # Leave the state of a pod with findings out of the key, because it alternates.
        (row.job, row.index, row.pod, row.state if not row.findings else ""): (
            f"{row.job}[{row.index}] {row.pod or '-'} {row.node or '-'} {row.state}"
        )
        for row in state.rows
    }
    return rows | {(finding.subject, finding.cause): finding for finding in state.all_findings}


def _lines(events: Sequence[str | Diagnosis]) -> list[str]:
    rows = [event for event in events if isinstance(event, str)]
    return rows + [f"  {line}" for line in grouped_lines(event for event in events if isinstance(event, Diagnosis))]


def _progress(state: PodFleet) -> str:
    return f"{state.up_count} of {len(state.rows)} pods are up"


_MAX_LINE_BYTES, _MAX_LOG_LINES = 1 << 16, 10_000


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
            {
                "job": row.job,
                "index": row.index,
                "pod": row.pod,
                "node": row.node or None,
                "state": row.state,
                "is_up": row.is_up,
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


def show_logs(context: Context, pod: str | None, *, follow: bool, tail: int) -> CommandResult:
    settings = load(context)
    flags = [f"--tail={tail}", *(["--follow"] if follow else [])]
    with open_cluster(settings) as cluster:
        name = find_pod_name(cluster, pod)
        if pod is None:
            flags += [f"--selector={PART_OF}", "--prefix", "--max-log-requests=64"]
        else:
            flags += [name, f"--container={settings.fleet.pods.container}"]
        lines: deque[str] = deque(maxlen=_MAX_LOG_LINES)
        try:
            code = _run_piped(cluster.kubectl.argv("logs", *flags), lines.append)
        except KeyboardInterrupt:
            if not follow:
                raise
            code = 0  # the usual way to stop following
        if code != 0:
            raise TaskFailed(f"kubectl logs ended with exit {code}", remedy="see `inv status`")
        return CommandResult(data={"pod": None if pod is None else name, "lines": list(lines)})


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


def _run_piped(argv: tuple[str, ...], on_line: Callable[[str], object]) -> int:
    """Run kubectl, print its untrusted output through our sanitized streams, and return its exit code."""
    pending = bytearray()

    def print_lines(chunk: bytes) -> None:
        pending.extend(chunk)
        *lines, last = bytes(pending).split(b"\n")
        pending[:] = last
        if len(pending) > _MAX_LINE_BYTES:  # printed in parts
            lines.append(bytes(pending))
            pending.clear()
        for line in lines:
            text = line.decode(errors="replace")
            print(text, flush=True)
            on_line(text)

    try:
        completed = run_program(argv, label="kubectl logs", on_stdout=print_lines, timeout_sec=math.inf)
    except CannotStart as error:
        raise not_installed_error(error) from error
    if pending:
        print_lines(b"\n")
    print(completed.stderr.decode(errors="replace"), end="", file=sys.stderr)
    return completed.exit_code


def _run_interactive(argv: tuple[str, ...]) -> int:
    """Run kubectl on this terminal and return its exit code."""
    try:
        return subprocess.run(argv, check=False).returncode
    except OSError as error:
        raise not_installed_error(error) from error
