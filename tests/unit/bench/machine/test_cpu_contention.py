"""Waits for a CPU: arithmetic on recorded numbers, files as kernels write them, a contention made here on one core."""

import pytest

from bench.machine import cpu_contention
from bench.machine.cpu_contention import CpuContention, CpuPressure, between

CALM = CpuPressure(
    at_sec=100.0,
    waited_ns={(7, 7): 250_000_000, (7, 8): 5_000, (9, 9): 1_000},
    periods_throttled=(40, 3),
    ticks_wanted_stolen=(5_000, 10),
)


def test_the_longest_wait_of_a_thread_that_was_there_all_the_time_counts_and_not_their_sum():
    after = CpuPressure(at_sec=110.0, waited_ns={(7, 7): 1_250_000_000, (7, 8): 3_000_005_000, (9, 9): 500_001_000})
    assert between(CALM, after) == CpuContention(cpu_wait_percent=30.0)
    after = CpuPressure(at_sec=110.0, waited_ns={(7, 7): 350_000_000, (7, 99): 9_000_000_000})
    assert between(CALM, after).cpu_wait_percent == pytest.approx(1.0)
    assert between(CALM, CpuPressure(at_sec=110.0, waited_ns={(7, 99): 9_000_000_000})) == CpuContention()


def test_quota_and_steal_are_shares_of_what_passed_in_the_window():
    after = CpuPressure(at_sec=110.0, periods_throttled=(90, 43), ticks_wanted_stolen=(6_000, 110))
    assert between(CALM, after) == CpuContention(cpu_quota_throttled_percent=80.0, cpu_steal_percent=10.0)


def test_what_is_not_counted_is_unknown_and_never_nought():
    nothing = CpuPressure(at_sec=100.0)
    assert between(nothing, CALM) == between(CALM, nothing) == between(CALM, CALM) == CpuContention()
    # A group without a quota has no periods, and a sandbox that hides the machine no ticks.
    still = CpuPressure(at_sec=110.0, periods_throttled=(40, 3), ticks_wanted_stolen=(5_000, 10))
    assert between(CALM, still) == CpuContention()
    assert CpuContention().flags == []


# Measured with the suite quick, profile tiny, on two cores; docs/measurements.md has the steps beside them.
@pytest.mark.parametrize(
    ("percent", "level"),
    [
        *((percent, None) for percent in (0.7, 1.0, 2.99, 4.71)),
        *((12.98, 10), (17.16, 10), (34.55, 20), (60.16, 50), (65.18, 50)),
    ],
)
def test_the_waits_of_trials_that_were_slowed_are_a_flag_that_says_what_to_do(percent, level):
    said = (
        f"CPU contention: the trial waited for a CPU over {level} % of the measured time; "
        "stop other programs or lower fleet.size"
    )
    assert CpuContention(cpu_wait_percent=percent, cpu_steal_percent=0.5).flags == ([said] if level else [])


def test_a_quota_is_named_as_the_cause_only_where_it_cost_time():
    (flag,) = CpuContention(cpu_wait_percent=49.79, cpu_quota_throttled_percent=100.0).flags
    assert "CPU quota was used up in over 50 % of its periods; raise the container's CPU limit" in flag
    assert CpuContention(cpu_quota_throttled_percent=100.0).flags == [
        flag
    ]  # where waits are not counted, it is all there is
    assert CpuContention(cpu_wait_percent=2.0, cpu_quota_throttled_percent=100.0).flags == []


def test_stolen_time_is_a_flag_of_its_own():
    first, second = CpuContention(cpu_wait_percent=30.0, cpu_steal_percent=12.0).flags
    assert "waited for a CPU" in first
    assert second.startswith(
        "CPU contention: the hypervisor gave over 10 % of this machine's CPU time to other machines"
    )


@pytest.fixture
def system(tmp_path, monkeypatch):
    """An empty /proc and /sys/fs/cgroup; called with a path below them and text, it adds the file."""
    monkeypatch.setattr(cpu_contention, "PROC", tmp_path / "proc")
    monkeypatch.setattr(cpu_contention, "CGROUPS", tmp_path / "cgroup")

    def add(place: str, text: str) -> None:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)

    return add


def read(pid: int) -> CpuPressure:
    return cpu_contention.read(pid, leave_out=0)


def test_each_thread_is_read_and_one_that_the_kernel_does_not_count_is_left_out(system):
    found = read(12)  # a system that tells nothing
    assert (found.waited_ns, found.periods_throttled, found.ticks_wanted_stolen) == ({}, None, None)
    pid = 2**22 + 12  # above the highest pid there can be, so that the real /proc knows no child of it
    system(f"proc/{pid}/task/{pid}/schedstat", "1116472729 2117491523 619\n")
    system(f"proc/{pid}/task/13/schedstat", "0 0 0\n")
    system("proc/stat", "cpu  3103344 514352 927665 2733235 39154 7 19526 7608 11 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    found = read(pid)
    assert found.waited_ns == {(pid, pid): 2117491523}
    assert found.ticks_wanted_stolen == (3103344 + 514352 + 927665 + 7 + 19526 + 7608, 7608)


QUOTA = "nr_periods 271\nnr_throttled 270\nthrottled_time 12996797868\n"
USAGE = "usage_usec 5000\nuser_usec 4000\nsystem_usec 1000\n"


@pytest.mark.parametrize(
    ("cgroup", "place"),
    [
        ("0::/kubepods/pod1/a\n", "cgroup/kubepods/pod1/a/cpu.stat"),
        ("0::/\n", "cgroup/cpu.stat"),
        ("0::/../not/seen/from/here\n", "cgroup/cpu.stat"),
        ("9:name=systemd:/\n4:cpu,cpuacct:/kubepods/a\n3:cpuset:/b\n0::/\n", "cgroup/cpu/kubepods/a/cpu.stat"),
        ("4:cpuacct,cpu:/docker/of/the/host\n", "cgroup/cpu/cpu.stat"),
    ],
)
def test_the_quota_is_found_in_both_versions_of_cgroups_from_outside_and_inside_a_container(system, cgroup, place):
    system("proc/self/cgroup", cgroup)
    system(place, QUOTA)
    assert read(12).periods_throttled == (271, 270)
    system(place, USAGE)  # a group that can have no quota has no periods
    assert read(12).periods_throttled is None
