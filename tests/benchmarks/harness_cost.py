"""Overhead of the harness: the reference recipe by `python -m bench run` and in a bare loop.

Both in turn, in processes of their own, over the same batches; equal losses show that they compute the same. Alone:

    python -m tests.benchmarks.harness_cost --profile gpu --model DIR --data FILE
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.records import Trial, suite
from bench.records.bootstrap import summarize
from bench.records.result import TrialResult
from tests.benchmarks import Figure, compare_with, demo_inputs, print_figures, spread
from tests.support.paths import ROOT

BARE = Path(__file__).with_name("_bare_loop.py")
PAIRS = 5
MEASURED_STEPS = 30
PROCESS_SEC = 900.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.harness_cost")
    parser.add_argument("--profile", choices=("tiny", "gpu"), default="tiny")
    parser.add_argument("--model", help="default: the demo's small model, made for this")
    parser.add_argument("--data", help="default: the demo's data")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        home, model, data = Path(folder), arguments.model, arguments.data
        if model is None or data is None:
            made = demo_inputs(home)
            model, data = model or made[0], data or made[1]
        trial = replace(suite("quick", arguments.profile, model, data)[1], measured_steps=MEASURED_STEPS)
        pairs = [_pair(home / f"pair-{number}", trial, number) for number in range(arguments.pairs)]
    return _figures(trial, pairs)


def _pair(folder: Path, trial: Trial, number: int) -> tuple[TrialResult, dict[str, Any]]:
    """Run both sides once, in alternating order. The bare loop computes in the dtype that bench chose."""
    folder.mkdir()
    environment = {**os.environ, **OFFLINE, "PYTHONPATH": str(ROOT)}
    if trial.profile == "tiny":
        environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    if number % 2:
        bare = _bare(trial, environment)
        return _through_bench(folder, trial, environment), bare
    return _through_bench(folder, trial, environment), _bare(trial, environment)


def _through_bench(folder: Path, trial: Trial, environment: dict[str, str]) -> TrialResult:
    (folder / "trial.json").write_text(trial.to_text())
    arguments = ("run", "--trial", str(folder / "trial.json"), "--out", str(folder / "out"))
    subprocess.run(
        (sys.executable, "-m", "bench", *arguments),
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=PROCESS_SEC,
    )
    return TrialResult.read(folder / "out" / "result.json")


def _bare(trial: Trial, environment: dict[str, str]) -> dict[str, Any]:
    sizes = {
        "seq": trial.max_seq_len,
        "batch": trial.micro_batch_size,
        "warmup": trial.warmup_steps,
        "steps": trial.measured_steps,
        "seed": trial.seed,
        "learning-rate": trial.learning_rate,
    }
    arguments = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    arguments += ["--model", trial.model, "--data", trial.data, "--dtype", _dtype(trial.profile)]
    done = subprocess.run(
        (sys.executable, str(BARE), *arguments),
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PROCESS_SEC,
    )
    bare: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return bare


def _dtype(profile: str) -> str:
    """Return the dtype that `bench.qlora.step.choose_placement` chooses, without importing torch here."""
    from bench.machine.fingerprint import cpu_flags

    has_bf16 = profile == "gpu" or not {"avx512_bf16", "amx_bf16"}.isdisjoint(cpu_flags())
    return "bfloat16" if has_bf16 else "float32"


def _figures(trial: Trial, pairs: Sequence[tuple[TrialResult, dict[str, Any]]]) -> list[Figure]:
    # The harness's mean includes its work between steps: losses, checks, log, progress.
    whole = [result.phases["measure"] / trial.measured_steps / bare["mean_step_sec"] for result, bare in pairs]
    # A busy machine disturbs single steps, and the mean with them; the median step is what a result reports.
    ours, bare = "the median step through bench", "the median step in a bare loop"
    medians = [
        (summarize(result.steps.step_time_sec).median, summarize(bare["step_sec"]).median) for result, bare in pairs
    ]
    apart = max(
        abs((loss if loss is not None else float("nan")) - other)
        for result, bare in pairs
        for loss, other in zip(result.warmup.loss + result.steps.loss, bare["loss"], strict=True)
    )
    size = f"{trial.max_seq_len} x {trial.micro_batch_size}, {trial.profile}"
    return [
        Figure(
            name=f"all steps through bench ({size})",
            value=f"{trial.measured_steps} steps",
            ratio=f"{spread(summarize(whole), 'x')} of a bare loop",
            goal="1.05 x",
        ),
        *compare_with(medians, ours, bare, of="a bare loop", goal="1.05 x"),
        Figure(name="largest difference between their losses", value=f"{apart:.2g} n={len(pairs[0][1]['loss'])}"),
    ]


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
