"""CPU contention from recorded numbers and from counter files as kernels write them."""

import pytest

from bench.machine import cpu_contention
from bench.machine.cpu_contention import CpuWaits, contention_flag, read_waits

BEFORE = CpuWaits(at_sec=100.0, waited_ns={(7, 7): 250_000_000, (7, 8): 5_000, (9, 9): 1_000})


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({(7, 7): 1_250_000_000, (7, 8): 3_000_005_000, (9, 9): 500_001_000}, 30.0),
        ({(7, 7): 350_000_000, (7, 99): 9_000_000_000}, 1.0),
        ({(7, 99): 9_000_000_000}, None),
        ({}, None),
    ],
)
def test_the_longest_wait_of_a_lasting_thread_counts_not_the_sum(after, expected):
    assert BEFORE.percent_until(CpuWaits(at_sec=110.0, waited_ns=after)) == expected
    assert BEFORE.percent_until(BEFORE) is None


# Measured with the suite quick, profile tiny; the last one where a container's quota was exhausted.
@pytest.mark.parametrize(
    ("percent", "level"), [(None, 0), (4.71, 0), (12.98, 10), (34.55, 20), (60.16, 50), (49.79, 20)]
)
def test_contention_is_a_flag_with_its_level_and_a_remedy(percent, level):
    flag = contention_flag(percent)
    assert (flag is None) is not bool(level)
    assert flag is None or (f" {level} % " in flag and "fleet.size" in flag.partition("; ")[2])


def test_threads_without_counters_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_contention, "PROC", tmp_path)
    assert read_waits(12, excluded_pid=0).waited_ns == {}  # a system without counters
    pid = 2**22 + 12  # above the highest possible pid, so that the real /proc has no child of it
    for thread, text in ((pid, "1116472729 2117491523 619\n"), (13, "0 0 0\n")):
        (tmp_path / f"{pid}/task/{thread}").mkdir(parents=True)
        (tmp_path / f"{pid}/task/{thread}/schedstat").write_text(text)
    assert read_waits(pid, excluded_pid=0).waited_ns == {(pid, pid): 2117491523}
