"""Number of attempts at a trial: waiting for another operator's trial on the same worker is not an attempt."""

import threading
from dataclasses import replace

import pytest

from remote.fleet.queue import EventType, FleetEvent
from remote.hosts.command import Command
from tests.support.hosts.local_fleet import PATIENCE_SEC, QUICK_LIMITS, CuttableHost, LocalFleet


@pytest.mark.usefixtures("short_claim_timeout")
@pytest.mark.parametrize(("name", "end"), [("killed-once", "SUCCEEDED"), ("killed", "LOST")])
def test_a_trial_requeued_by_a_busy_worker_keeps_exactly_its_number_of_attempts(
    local: LocalFleet, name: str, end: str
) -> None:
    local.plan(f"{name} 1", f"{name} 2")
    busy, idle = local.hosts(2)
    other_job = local.start_other_job()
    given_up = threading.Event()

    def on_event(event: FleetEvent) -> None:
        if event.kind is EventType.WORKER_BUSY:
            given_up.set()

    def wait_until_busy(_: Command) -> None:  # so that each of the two has taken a trial by then
        assert given_up.wait(PATIENCE_SEC)

    later = CuttableHost(host=idle, before=wait_until_busy)
    local.fleet(
        [busy, later], limits=replace(QUICK_LIMITS, lost_after_sec=0.2, max_attempts=2), on_event=on_event
    ).run()
    other_job.cancel(grace_sec=1.0)
    assert local.statuses() == {f"{name}-1": end, f"{name}-2": end}
    assert sorted(line.split()[1] for line in local.bench_log_lines("started")) == [f"{name}-1"] * 2 + [f"{name}-2"] * 2
