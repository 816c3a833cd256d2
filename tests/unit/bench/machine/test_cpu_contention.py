"""CPU contention from recorded numbers and from counter files as kernels write them."""

import pytest

from bench.machine import cpu_contention
from bench.machine.cpu_contention import CpuContention, CpuCounters, contention_between
from tests.support.cases import Case, load_cases

CALM = CpuCounters(
    at_sec=100.0,
    waited_ns={(7, 7): 250_000_000, (7, 8): 5_000, (9, 9): 1_000},
    periods_throttled=(40, 3),
    ticks_wanted_stolen=(5_000, 10),
)


def test_the_longest_wait_of_a_lasting_thread_counts_not_the_sum():
    after = CpuCounters(at_sec=110.0, waited_ns={(7, 7): 1_250_000_000, (7, 8): 3_000_005_000, (9, 9): 500_001_000})
    assert contention_between(CALM, after) == CpuContention(cpu_wait_percent=30.0)
    after = CpuCounters(at_sec=110.0, waited_ns={(7, 7): 350_000_000, (7, 99): 9_000_000_000})
    assert contention_between(CALM, after).cpu_wait_percent == pytest.approx(1.0)
    assert contention_between(CALM, CpuCounters(at_sec=110.0, waited_ns={(7, 99): 9_000_000_000})) == CpuContention()


def test_quota_and_steal_are_shares_of_what_passed_in_the_window():
    after = CpuCounters(at_sec=110.0, periods_throttled=(90, 43), ticks_wanted_stolen=(6_000, 110))
    assert contention_between(CALM, after) == CpuContention(cpu_quota_throttled_percent=80.0, cpu_steal_percent=10.0)


def test_missing_counters_give_unknown_not_zero():
    nothing = CpuCounters(at_sec=100.0)
    assert (
        contention_between(nothing, CALM)
        == contention_between(CALM, nothing)
        == contention_between(CALM, CALM)
        == CpuContention()
    )
    # A group without a quota has no periods, and a sandbox that hides the machine no ticks.
    still = CpuCounters(at_sec=110.0, periods_throttled=(40, 3), ticks_wanted_stolen=(5_000, 10))
    assert contention_between(CALM, still) == CpuContention()
    assert CpuContention().flags == []


@pytest.mark.parametrize("case", load_cases(__file__, "contention.yaml"))
def test_each_cause_of_contention_is_a_flag_with_its_level_and_a_remedy(case: Case):
    flags = CpuContention(**case["input"]).flags
    assert len(flags) == len(case["expected"])
    for flag, (cause, level, remedy) in zip(flags, case["expected"], strict=True):
        assert flag.startswith("CPU contention: ")
        assert cause in flag
        assert f" {level} % " in flag
        assert remedy in flag.partition("; ")[2]


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Replace /proc and /sys/fs/cgroup with empty folders; return a function that adds a file."""
    monkeypatch.setattr(cpu_contention, "PROC", tmp_path / "proc")
    monkeypatch.setattr(cpu_contention, "CGROUPS", tmp_path / "cgroup")

    def add(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return add


def read(pid: int) -> CpuCounters:
    return cpu_contention.read_counters(pid, excluded_pid=0)


def test_threads_without_counters_are_left_out(system):
    counters = read(12)  # a system without counters
    assert (counters.waited_ns, counters.periods_throttled, counters.ticks_wanted_stolen) == ({}, None, None)
    pid = 2**22 + 12  # above the highest possible pid, so that the real /proc has no child of it
    system(f"proc/{pid}/task/{pid}/schedstat", "1116472729 2117491523 619\n")
    system(f"proc/{pid}/task/13/schedstat", "0 0 0\n")
    system("proc/stat", "cpu  3103344 514352 927665 2733235 39154 7 19526 7608 11 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    counters = read(pid)
    assert counters.waited_ns == {(pid, pid): 2117491523}
    assert counters.ticks_wanted_stolen == (3103344 + 514352 + 927665 + 7 + 19526 + 7608, 7608)


QUOTA = "nr_periods 271\nnr_throttled 270\nthrottled_time 12996797868\n"
USAGE = "usage_usec 5000\nuser_usec 4000\nsystem_usec 1000\n"


@pytest.mark.parametrize(
    ("cgroup", "path"),
    [
        ("0::/kubepods/pod1/a\n", "cgroup/kubepods/pod1/a/cpu.stat"),
        ("0::/\n", "cgroup/cpu.stat"),
        ("0::/../not/seen/from/here\n", "cgroup/cpu.stat"),
        ("9:name=systemd:/\n4:cpu,cpuacct:/kubepods/a\n3:cpuset:/b\n0::/\n", "cgroup/cpu/kubepods/a/cpu.stat"),
        ("4:cpuacct,cpu:/docker/of/the/host\n", "cgroup/cpu/cpu.stat"),
    ],
)
def test_the_quota_is_read_from_cgroups_1_and_2_outside_and_inside_a_container(system, cgroup, path):
    system("proc/self/cgroup", cgroup)
    system(path, QUOTA)
    assert read(12).periods_throttled == (271, 270)
    system(path, USAGE)  # a group that cannot have a quota has no periods
    assert read(12).periods_throttled is None
