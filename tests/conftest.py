"""Hooks for all tests: their environment, their order, and the units that one worker runs."""

import gc
import os
import re
import signal
import sys
from collections import Counter
from typing import Any

import pytest

pytest_plugins = ("tests.support.fixtures",)
# Cache rewritten asserts for the other workers and the next run, even if the environment disables bytecode files.
sys.dont_write_bytecode = False
# With one thread per core, several workers contend: 6 s of processor time for a test of recipes, 0.3 s with one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# kubectl starts faster without garbage collection: 70 ms of processor time instead of 120.
os.environ.setdefault("GOGC", "off")
os.environ.setdefault("GOMEMLIMIT", "256MiB")
# A width that the caller or xdist sets would wrap what tests read.
os.environ.pop("COLUMNS", None)
# Collecting the tests creates half a million objects and no garbage: saves 1.4 s of processor time in each worker.
gc.disable()
# The build VM's tests are one unit: a VM with its first build takes half a minute.
BUILD_VM_TESTS = "tests/system/image/"
# These import the training stack: 2.8 s of processor time in each worker that runs one of them. In one unit they would
# be the last to end.
STACK = "tests/unit/bench/"
STACK_UNITS = (("adapter", "architectures"), ("kernels", "workloads/finetune", "predict", "qlora"))
# The longest units run first.
FOLDER_ORDER = (
    BUILD_VM_TESTS,
    STACK,
    "tests/system/",
    "tests/faults/",
    "tests/test_sources.py",
    "tests/integration/",
    "tests/",
)
# The tests of these files share nothing, so different workers may run them.
SPLIT_FILES = ("tests/system/fleet/test_inv_bench.py",)


def pytest_configure() -> None:
    """Restore SIGINT, so that child processes react to Ctrl-C.

    A script starts background processes with SIGINT ignored, and their children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: [item.nodeid.startswith(folder) for folder in FOLDER_ORDER].index(True))
    gc.freeze()  # the tests stay; later collections need not look at them
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of `pytest -n`: units of work in the order of collection, each run by one worker."""
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return Units(config, log)


def unit_of(nodeid: str) -> str:
    """Return the unit of work that a test belongs to: one worker runs a file's tests, because they share servers."""
    file = nodeid.partition("::")[0]
    if file in SPLIT_FILES:
        return nodeid
    for folders in STACK_UNITS:
        if file.startswith(tuple(f"{STACK}{folder}/" for folder in folders)):
            return f"{STACK}{folders[0]}"
    return BUILD_VM_TESTS if file.startswith(BUILD_VM_TESTS) else file


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print each reason for skipped tests, and the command that installs missing programs."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
    if any(
        re.search(r"is not installed|apt-get install|cluster needs [a-z]|needs a C compiler", reason)
        for reason in reasons
    ):
        terminalreporter.line("`make system` installs the missing programs (as root, on Debian)")
