"""Shared parts of the GPU benchmarks: memory limit, number of steps, a process for each case, and the power drawn."""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.machine import nvml
from bench.records.bootstrap import summarize
from tests.benchmarks import spread

LIMIT_BYTES = int(21.5 * 2**30)  # usable for training on a 24 GB card
WARMUP, MEASURED = 5, 12
HELD_LAYERS = 11  # fit the limit together with the activations of 512 x 8, captured
HELD_IN_EIGHT = 19
PERIOD_SEC = 0.05
CASE_SEC = 600.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "UNSLOTH_DISABLE_STATISTICS": "1"}
# Below such a share of the other case's reading, a reference was likely held up by its host. Measured: 0.93 to 1 of the
# power and 0.9 to 1 of the time at the limit on a quiet host; 0.91 and 0.75 on a busy one.
HOST_BOUND_SHARE = {"watts": 0.92, "power_capped_percent": 0.8, "busy_percent": 0.9}


@dataclass(kw_only=True)
class Draw:
    """Power in watts, the clock of the multiprocessors in MHz and what held it back, sampled by `metered`."""

    readings: list[nvml.GpuSample] = field(default_factory=list)

    @property
    def watts(self) -> float | None:
        return _median([reading.power_watts for reading in self.readings])

    @property
    def sm_clock_mhz(self) -> float | None:
        return _median([reading.sm_clock_mhz for reading in self.readings])

    @property
    def capped_percent(self) -> float | None:
        """Percentage of the readings whose clock was lowered by the power limit."""
        told = [reading.clock_limits for reading in self.readings if reading.clock_limits is not None]
        return 100.0 * sum(nvml.POWER_CAP in limits for limits in told) / len(told) if told else None

    @property
    def busy_percent(self) -> float | None:
        """Percentage of the time in which a kernel ran."""
        return _median([reading.utilization_percent for reading in self.readings])

    def to_json(self) -> dict[str, Any]:
        return {
            "watts": self.watts,
            "sm_clock_mhz": self.sm_clock_mhz,
            "power_capped_percent": self.capped_percent,
            "busy_percent": self.busy_percent,
        }


def is_host_bound(reference: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if the reference used far less of the GPU than the other case; both are `Draw.to_json()`.

    Then its host was likely too slow, and a ratio of their times is too large. False without readings.
    """
    pairs = [(reference.get(name), other.get(name), share) for name, share in HOST_BOUND_SHARE.items()]
    return any(mine < share * theirs for mine, theirs, share in pairs if mine is not None and theirs is not None)


def limit_memory(torch: Any, *, limited: bool = True) -> None:
    """Limit this process to LIMIT_BYTES of the GPU, or lift the limit."""
    if torch.cuda.is_available():
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES / whole if limited else 1.0)


@contextlib.contextmanager
def metered() -> Iterator[Draw]:
    """Read the first GPU every PERIOD_SEC while the block runs; without a GPU, read nothing."""
    draw, done = Draw(), threading.Event()
    gpus = nvml.visible_gpus()

    def sample() -> None:
        while not done.wait(PERIOD_SEC):
            draw.readings.append(gpus[0].read())

    sampler = threading.Thread(target=sample, daemon=True)
    if gpus:
        sampler.start()
    try:
        yield draw
    finally:
        done.set()
        if gpus:
            sampler.join()


def format_draw(draw: dict[str, Any]) -> str:
    """Format a `Draw.to_json()` as the end of a list: ", 692 W at 1,470 MHz (at the power limit: 100 %)"."""
    if draw.get("watts") is None or draw.get("sm_clock_mhz") is None:
        return ""
    capped = draw["power_capped_percent"]
    limit = "" if capped is None else f" (at the power limit: {capped:.0f} %)"
    return f", {draw['watts']:.0f} W at {draw['sm_clock_mhz']:,.0f} MHz{limit}"


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


def _median(values: list[Any]) -> float | None:
    told = [float(value) for value in values if value is not None]
    return statistics.median(told) if told else None
