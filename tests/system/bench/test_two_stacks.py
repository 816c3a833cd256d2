"""The bench on two stacks: this environment's (profile `current`) and the image's profile `reference` (torch 2.1.2).

The second needs gigabytes of CUDA and another Python, so these tests are optional: create an environment from the lock
of profile `reference`, and set QLORA_FLEET_REFERENCE_PYTHON to its Python. Without it they are skipped.

Not covered: NF4 and the paged optimizer under `reference`, whose bitsandbytes computes only on CUDA; the one-line error
is covered.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REFERENCE = os.environ.get("QLORA_FLEET_REFERENCE_PYTHON")
PYTHONS = {"current": sys.executable, "reference": REFERENCE or ""}
# Settings that every stack supports on a CPU: a 16-bit base and a torch optimizer.
ON_ANY_CPU = {"base_precision": "bf16", "optimizer": "adamw_torch"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.two_stacks,
    pytest.mark.skipif(
        REFERENCE is None, reason="QLORA_FLEET_REFERENCE_PYTHON does not name a Python with the reference stack"
    ),
]


@pytest.fixture
def run(tiny_model: Path, demo_data: Path, tmp_path: Path, bench_environment: dict[str, str]) -> Callable[..., Any]:
    """Return run(stack, trial name, **changes), which returns the exit code, the output, and the result or None."""

    def start(stack: str, name: str, **changes: str) -> tuple[int, str, dict[str, Any] | None]:
        out = tmp_path / f"{stack}-{name}"
        argv = [PYTHONS[stack], "-m", "bench", "run", "--suite", "all", "--trial-name", name, "--profile", "tiny"]
        argv += ["--model", str(tiny_model), "--data", str(demo_data), "--out", str(out)]
        argv += [f"--set={key}={value}" for key, value in changes.items()]
        done = subprocess.run(argv, env=bench_environment, capture_output=True, text=True, timeout=240, check=False)
        path = out / "result.json"
        result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        return done.returncode, done.stdout + done.stderr, result

    return start


@pytest.mark.parametrize("stack", PYTHONS)
def test_the_reference_recipe_learns_the_same_on_both_stacks(stack: str, run: Callable[..., Any]) -> None:
    code, output, result = run(
        stack, "optimized", **ON_ANY_CPU, micro_batch_size="4", warmup_steps="1", measured_steps="5"
    )
    assert code == 0, output
    # The adapters' random initialization differs; no other difference changes a loss by more than this.
    assert result["steps"]["loss"][0] == pytest.approx(8.59, abs=0.05)
    assert result["steps"]["loss"][-1] == pytest.approx(7.72, abs=0.15)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("hardware", {}),
        ("load-bf16", {}),
        ("generate-bf16", {}),
        ("packed", ON_ANY_CPU),
        ("no-checkpointing", ON_ANY_CPU),
        ("ddp-2", ON_ANY_CPU),
    ],
)
def test_every_kind_of_trial_runs_on_the_reference_stack(
    name: str, changes: dict[str, str], run: Callable[..., Any]
) -> None:
    code, output, result = run("reference", name, **changes)
    assert (code, result and result["status"]) == (0, "SUCCEEDED"), output


def test_the_reference_stack_rejects_nf4_on_a_cpu_in_one_line(run: Callable[..., Any]) -> None:
    code, output, result = run("reference", "optimized")
    assert (code, result) == (2, None)
    assert "optimizer=adamw_torch" in output.strip().splitlines()[-1]
