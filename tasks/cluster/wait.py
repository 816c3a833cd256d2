"""Waits for pods, with a live view of each. A pod that cannot come up ends the wait with reason and remedy."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.finding import Diagnosis, together
from remote.cluster.diagnosis.image_pull import BACK_OFF_SEC, LOGIN_CAUSES
from remote.cluster.diagnosis.readiness import PodFleet, fleet
from remote.cluster.errors import ClusterError, Unreachable
from tasks.cli import terminal
from tasks.errors import RetryableError, TaskFailed
from tasks.settings.load import Settings

# One look is four requests, for all pods together. Between looks a watch reports changes of pods; without any, the next
# look is for everything else: events, refused pods, claims. Changes in quick succession share one look, with longer
# pauses while they bring nothing new: a pull that fails changes its pod again and again.
_QUIET_SEC = 15.0
_TOGETHER_SEC, _MOST_TOGETHER_SEC = 0.5, 10.0
_AGAIN_SEC = 1.0
_SILENCE_SEC = 60.0  # an API server that restarts is back before that


def state_of(cluster: Cluster, jobs: Sequence[Mapping[str, Any]]) -> PodFleet:
    """The state of the Jobs with these names, read now. Raises ClusterError."""
    names = {job["metadata"]["name"] for job in jobs}
    live = [job for job in cluster.list_of("Job") if job["metadata"]["name"] in names]
    pods = cluster.pods()
    state = fleet(live, pods, [], [])
    if state.is_up:
        return state
    return fleet(live, pods, cluster.list_of("PersistentVolumeClaim"), cluster.events())


def wait(
    settings: Settings,
    cluster: Cluster,
    jobs: Sequence[Mapping[str, Any]],
    *,
    plain: bool,
    new_login: bool = False,
    look: Callable[[PodFleet], object] = lambda _state: None,
    again: str = "inv deploy",
) -> None:
    """Wait until the Jobs have all their pods. Raises TaskFailed with the reason as soon as waiting is pointless.

    `new_login`: the pull secret is new, and the pods may still report that the old one was refused. `look` is told of
    each look at the pods.
    """
    screen = terminal.console()
    began = heard = time.monotonic()
    limit = settings.cluster.ready_within_sec
    patience = WaitPolicy(login_sec=BACK_OFF_SEC if new_login else 0.0)
    before: Mapping[object, str | Diagnosis] = {}
    together_sec = _TOGETHER_SEC
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        is_live = screen.is_terminal and not plain
        while True:
            now = time.monotonic()
            try:
                state = state_of(cluster, jobs)
                heard = now
            except Unreachable as error:
                if now - heard > _SILENCE_SEC:
                    raise RetryableError(f"{error} (silent for {now - heard:.0f} s); `{again}` goes on") from None
                time.sleep(_AGAIN_SEC)
                continue
            news = _news_of(state)
            if is_live:
                wrong = (Text(f"  {line}") for line in together(state.all_findings))
                live.update(Group(table(state), *wrong), refresh=True)
            else:
                for line in _lines([news[key] for key in news if key not in before]):
                    screen.print(line)
            together_sec = _TOGETHER_SEC if news.keys() != before.keys() else min(_MOST_TOGETHER_SEC, 2 * together_sec)
            before = news
            if state.is_up:
                break
            look(state)
            hopeless = patience.exhausted(state.all_findings, now)
            if hopeless is not None:
                raise TaskFailed(f"{_how_far(state)}: {hopeless}; then `{again}`")
            if now - began > limit:
                first = next(iter(state.all_findings), None)
                why = f": {first}" if first is not None else ""
                raise RetryableError(f"{_how_far(state)} after {now - began:.0f} s{why}; `{again}` goes on waiting")
            within_sec = min(_QUIET_SEC, limit - (now - began), patience.left_sec(state.all_findings, now))
            _until_news(cluster, within_sec, together_sec)
    screen.print(f"{_how_far(state)}, after {time.monotonic() - began:.0f} s")
    if settings.fleet.kind != "pods" and settings.cluster.overlay in ("pods", "preemptible"):
        screen.print("set fleet.kind to pods, and `inv bench` runs on them")


def _until_news(cluster: Cluster, within_sec: float, together_sec: float) -> None:
    """Sleep until a pod changes, and then for `together_sec`, for further changes."""
    began = time.monotonic()
    try:
        cluster.await_change(max(1.0, within_sec))
    except ClusterError:
        time.sleep(_AGAIN_SEC)  # the next look meets the same error and reports it
    time.sleep(max(0.0, min(together_sec, began + within_sec - time.monotonic())))


class WaitPolicy:
    """How long each finding has lasted. A finding that lasts longer than its patience ends the wait.

    `login_sec`: how long a refused login may last at least.
    """

    def __init__(self, login_sec: float = 0.0) -> None:
        self._login_sec = login_sec
        self._since: dict[tuple[str, str], float] = {}

    def exhausted(self, findings: Sequence[Diagnosis], now: float) -> Diagnosis | None:
        """The first finding that has lasted too long. A finding that went away starts again from nothing."""
        keys = {(finding.subject, finding.cause) for finding in findings}
        self._since = {key: self._since.get(key, now) for key in keys}
        return next((finding for finding in findings if self._end_of(finding) <= now), None)

    def left_sec(self, findings: Sequence[Diagnosis], now: float) -> float:
        """Seconds until the first of these findings has lasted too long."""
        return min(map(self._end_of, findings), default=float("inf")) - now

    def _end_of(self, finding: Diagnosis) -> float:
        if finding.patience_sec is None:
            return float("inf")
        least_sec = self._login_sec if finding.cause in LOGIN_CAUSES else 0.0
        return self._since[finding.subject, finding.cause] + max(finding.patience_sec, least_sec)


def table(state: PodFleet) -> Table:
    """Every pod: its node, state and restarts."""
    shown = terminal.table("job", "index", "pod", "node", "state", "restarts")
    for row in state.rows:
        style = "green" if row.is_up else "red" if row.findings else "yellow"
        cells = (row.job, str(row.index), row.pod or "-", row.node or "-")
        shown.add_row(*map(Text, cells), Text(row.state, style=style), str(row.restarts))
    return shown


def _news_of(state: PodFleet) -> dict[object, str | Diagnosis]:
    """Each pod's line and each finding, by a key that stays the same while a refusal's words change."""
    rows: dict[object, str | Diagnosis] = {
        # The state of a pod with findings goes to and fro, so that it is left out of the key.
        (row.job, row.index, row.pod, row.state if not row.findings else ""): (
            f"{row.job}[{row.index}] {row.pod or '-'} {row.node or '-'} {row.state}"
        )
        for row in state.rows
    }
    return rows | {(finding.subject, finding.cause): finding for finding in state.all_findings}


def _lines(news: Sequence[str | Diagnosis]) -> list[str]:
    rows = [new for new in news if isinstance(new, str)]
    return rows + [f"  {line}" for line in together(new for new in news if isinstance(new, Diagnosis))]


def _how_far(state: PodFleet) -> str:
    return f"{state.up} of {len(state.rows)} pods are up"
