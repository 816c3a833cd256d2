"""How often a trial may be started: what a worker at another operator's trial has kept waiting was not started."""

import threading
from dataclasses import replace

import pytest

from remote.fleet.events import EventType, FleetEvent
from remote.hosts.command import Command
from tests.support.hosts.local_fleet import PATIENCE_SEC, QUICK, CuttableHost, LocalFleet


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize(("name", "end"), [("killed-once", "SUCCEEDED"), ("killed", "LOST")])
def test_a_trial_passed_on_by_a_busy_worker_has_all_its_attempts_still_and_no_more(
    local: LocalFleet, name: str, end: str
) -> None:
    local.plan(f"{name} 1", f"{name} 2")
    busy, idle = local.hosts(2)
    theirs = local.occupied()
    given_up = threading.Event()

    def hear(event: FleetEvent) -> None:
        if event.happening is EventType.WORKER_BUSY:
            given_up.set()

    def wait_for_it(_: Command) -> None:  # so that each of the two has taken a trial by then
        assert given_up.wait(PATIENCE_SEC)

    later = CuttableHost(host=idle, before=wait_for_it)
    local.fleet([busy, later], limits=replace(QUICK, lost_after_sec=0.2, max_attempts=2), on_event=hear).run()
    theirs.cancel(grace_sec=1.0)
    assert local.ends() == {f"{name}-1": end, f"{name}-2": end}
    assert sorted(line.split()[1] for line in local.noted("started")) == [f"{name}-1"] * 2 + [f"{name}-2"] * 2
