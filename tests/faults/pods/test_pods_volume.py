"""A shared volume of pods that is full. Real kubectl against the tests' own cluster."""

from dataclasses import replace
from pathlib import Path

from tests.support.hosts.local_fleet import wait_for
from tests.support.pods import LIMITS, running_pod_fleet, with_short_silence


def test_a_full_volume_ends_trials_with_the_reason_and_a_resume_with_space_runs_them(
    tmp_path: Path,
) -> None:
    """Fill the volume before a trial has a folder, before its result, and after its result: only the last succeeds."""
    with running_pod_fleet(tmp_path, 2, volume_size="4m") as pods:
        pods.plan("slow middle", "success-then-lingers last", "fine start", workers=2)
        hosts = with_short_silence(pods.pod_hosts())
        with pods.running(pods.pod_fleet(hosts=hosts, limits=replace(LIMITS, max_attempts=2))):
            wait_for(
                lambda: (
                    pods.bench_log_lines("started", "slow-middle")
                    and pods.bench_log_lines("succeeded", "success-then-lingers-last")
                ),
                "one runs, one is done",
            )
            pods.fill_volume()
            pods.release_slow_trials()
        assert pods.statuses() == {
            "slow-middle": "LOST",
            "success-then-lingers-last": "SUCCEEDED",
            "fine-start": "LOST",
        }
        for trial_id in ("slow-middle", "fine-start"):
            assert "No space left on device" in (pods.reasons()[trial_id] or "")
        pods.free_volume()
        pods.pod_fleet(hosts=hosts).run()
        assert set(pods.statuses().values()) == {"SUCCEEDED"}
        assert len(pods.bench_log_lines("started", "success-then-lingers-last")) == 1
