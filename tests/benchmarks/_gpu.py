"""Shared parts of the GPU benchmarks: memory limit, number of steps, and a process for each case."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.records.bootstrap import summarize
from tests.benchmarks import spread

LIMIT_BYTES = int(21.5 * 2**30)  # usable for training on a 24 GB card
WARMUP, MEASURED = 5, 12
HELD_LAYERS = 11  # fit the limit together with the activations of 512 x 8, captured
HELD_IN_EIGHT = 19
CASE_SEC = 600.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "UNSLOTH_DISABLE_STATISTICS": "1"}


def limit_memory(torch: Any, *, limited: bool = True) -> None:
    """Limit this process to LIMIT_BYTES of the GPU, or lift the limit."""
    if torch.cuda.is_available():
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES / whole if limited else 1.0)


def case_parser(module: str, cases: Iterable[str], all_cases: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Make the parser of a benchmark whose cases have a process each; `cases` run by default, `all_cases` are known."""
    default = list(cases)

    def known(names: str) -> str:
        for name in names.split(","):
            if name not in (all_cases or default):
                raise argparse.ArgumentTypeError(f"{name!r} is unknown; there are {', '.join(all_cases or default)}")
        return names

    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--model", help="a model folder of Mistral's or Llama's architecture")
    parser.add_argument("--cases", type=known, default=",".join(default))
    parser.add_argument("--steps", type=int, default=MEASURED)
    parser.add_argument("--json", type=Path, help="every step time and peak, for a record")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser


def run_cases(arguments: argparse.Namespace, module: str, measure: Callable[[str], Any]) -> dict[str, dict[str, Any]]:
    """Measure each case in its own process, which gets --one; return the results, each with `times` or `failed`."""
    if arguments.one:
        print(json.dumps(measure(arguments.one)), flush=True)
        return {}
    results: dict[str, dict[str, Any]] = {}
    for name in arguments.cases.split(","):
        argv = [sys.executable, "-m", module, "--model", arguments.model, "--one", name, "--steps"]
        results[name] = _last_line((*argv, str(arguments.steps)))
        print(f"{name}: {json.dumps({k: v for k, v in results[name].items() if k != 'times'})}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1))
    return results


def _last_line(argv: tuple[str, ...]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            argv, env={**os.environ, **OFFLINE}, capture_output=True, text=True, timeout=CASE_SEC, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took longer than {CASE_SEC:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return {"failed": "\n".join(done.stderr.strip().splitlines()[-8:]) or f"exit code {done.returncode}"}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def format_result(result: Mapping[str, Any], tokens: int) -> str:
    """Format a case's step time, tokens per second for `tokens` a step, and peak memory, or why it failed."""
    if "failed" in result:
        return f"failed: {result['failed'].splitlines()[-1]}"
    interval = summarize(result["times"])
    peak = "" if result["peak_bytes"] is None else f", peak {result['peak_bytes'] / 2**30:.2f} GiB"
    return f"{spread(interval, 's')}, {tokens / interval.median:,.0f} tokens/s{peak}"
