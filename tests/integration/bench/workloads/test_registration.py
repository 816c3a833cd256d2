"""A workload needs its module and its registration, no more: a run of it is planned, measured and reported."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

MODULE = """
def measure(record, inputs, stops):
    record.steps_planned = 2
    with record.timed("measure"):
        for size in (1, 2):
            record.add("dummy_tokens_per_sec", 500.0 * size, size=size)
"""
REGISTRATION = """
    Workload(
        name="dummy",
        title="Dummies",
        size="{max_seq_len}",
        needs=(),
        deadline_sec=77.0,
        suites=(Suite(name="dummies", trials=(SuiteTrial("dummy", 512, 8, "a test"),)),),
    ),
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the project with a workload more: a new file, and an entry in the list of workloads."""
    tree = tmp_path / "tree"
    for name in ("bench", "remote", "reports", "tasks"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tasks.py", "invoke.yaml", "pyproject.toml"):
        shutil.copy(ROOT / name, tree)
    (tree / "bench" / "workloads" / "dummy.py").write_text(MODULE)
    registry = tree / "bench" / "records" / "workloads.py"
    before, line, after = registry.read_text().partition("for workload in (")
    registry.write_text(before + line + REGISTRATION + after)
    return tree


def run(tree: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"HOME": str(tree), "PYTHONPATH": str(tree), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        (sys.executable, *arguments),
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_workload_needs_its_module_and_its_registration(tree: Path, model_folder: Path, data_file: Path) -> None:
    settings = {"model": {"path": str(model_folder)}, "data": {"path": str(data_file)}, "fleet": {"size": 1}}
    (tree / "f.yaml").write_text(json.dumps(settings))
    bench = ("bench", "--suite=dummies")
    done = run(tree, "tasks/cli/inv", "-f", "f.yaml", *bench, "--dry-run", *bench, "report")
    assert done.returncode == 0, done.stderr
    assert "64" in done.stdout.split("dummy")[2].split(), "the plan shows the size"
    (path,) = (tree / "results" / "latest" / "trials").glob("*/result.json")
    result = json.loads(path.read_text())
    assert result["trial"]["deadline_sec"] == 77.0
    assert [measurement["value"] for measurement in result["measurements"][:2]] == [500.0, 1000.0]
    assert "## Dummies" in (tree / "results" / "latest" / "report" / "report.md").read_text()


def test_workloads_and_ranks_are_imported_without_torch():
    """Check that no import precedes `torch_stack.load`, which sets variables that libraries read once."""
    code = (
        "import sys\nfrom bench.records.workloads import WORKLOADS\nfrom bench.workloads import load\n"
        "for workload in WORKLOADS.values():\n    load(workload)\n"
        "import bench.workloads.distributed_rank, bench.workloads.finetune.rank\nassert 'torch' not in sys.modules"
    )
    subprocess.run((sys.executable, "-c", code), cwd=ROOT, check=True, timeout=120)
