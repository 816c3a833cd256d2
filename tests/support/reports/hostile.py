"""Hostile run folders: non-regular files, damaged JSON, and checksummed records with absurd values.

`python -m tests.support.reports.hostile [CASES] [SEED] [FIRST]` generates them from number FIRST (0) up to CASES
(10,000), builds the report of each in its own process, without drawing, and prints which raised an exception, took over
5 s of processor time (300 s in all) or over 600 MB. In every 40th, one figure is drawn, another each time.
`... hostile every` instead sets every key of every checksummed file to each of a few values, in one process.
"""

import contextlib
import gc
import itertools
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.records import checksummed
from reports.figures import CHARTS, renderer
from reports.output import html, markdown, tables
from reports.read.load import load
from reports.read.run import ReportError, Run
from reports.summary.summarize import summarize
from tests.support.reports import synthetic

MAX_SEC, MAX_BYTES = 5, 600_000_000
HANG_SEC = 300  # on a busy machine, a process may not run for minutes
FILES = (
    "run.json",
    "ledger.jsonl",
    "trials/baseline.worker-1/result.json",
    "trials/ddp-2.worker-1/result.json",
    "trials/hardware.worker-1/result.json",
    "trials/baseline.worker-1/telemetry.csv",
)
CHECKSUMMED = tuple(name for name in FILES if name.endswith(".json"))
VALUES: tuple[Any, ...] = (
    *(5e-324, 1e-300, 1e308, -1e308, 0, -1, 1, 2**53 + 1, 2**63, 2**70, 10**400, -(10**30), 0.0, 1e17),
    *(None, True, "", "text", "\x00", "\ud800", "x" * 100_000, "$\\frac{1}{", "=1+1", "\u202e", "../../etc", "\n" * 50),
    *([], {}, [[]], {"a": {"b": []}}, [None] * 1000, ["a"], [0.0] * 15, [1e308] * 15, [2**70] * 15, [5e-324] * 15),
)
BASIC_VALUES: tuple[Any, ...] = (0, -1, 1, 2**53, 1e17, 1e-18, None, True, "", [], {})
VALID_COMBINATIONS = ((("loss", 0), -1), (("wall_time_sec",), 5e-324))
DEEP = 3000
OUTCOMES = {0: "well", 1: "traceback", -signal.SIGALRM: "hangs", -signal.SIGPROF: "longer than 5 s"}


def write(folder: Path) -> None:
    """Write a small valid run with every workload, a ledger and a telemetry file."""
    folder.mkdir(parents=True)
    trials = (*(synthetic.trial(name, measured_steps=4) for name in ("baseline", "other")), *synthetic.other_kinds())
    synthetic.write_run(folder, synthetic.record(trials, workers=1))
    events = [
        {"time": "2026-03-01T10:15:04+00:00", "event": "started", "trial_id": f"{trial.name}.worker-1", "attempt": 1}
        for trial in trials
    ]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    path = folder / "trials/baseline.worker-1/telemetry.csv"
    path.write_text(
        "elapsed_sec,phase,gpu,gpu_utilization_percent\n"
        + "".join(f"{second},measure,0,{90 + second % 3}\n" for second in range(30))
    )


def rewrite_checksummed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the document of a checksummed record and update its checksum."""
    document = json.loads(path.read_text())
    del document["sha256"]
    change(document)
    try:
        document["sha256"] = checksummed._digest(document)
    except (ValueError, RecursionError):
        document["sha256"] = "0" * 64
    path.write_text(json.dumps(document))


def set_value(document: Any, key_path: tuple[Any, ...], value: Any) -> None:
    for key in key_path[:-1]:
        document = document[key]
    document[key_path[-1]] = value


def key_paths(document: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every key of a document; of a list, only the first two items."""
    items = document.items() if isinstance(document, dict) else enumerate(document[:2])
    for key, value in items:
        yield (*before, key)
        if isinstance(value, (dict, list)):
            yield from key_paths(value, (*before, key))


def _replace_with(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def _socket(path: Path) -> None:
    with (
        socket.socket(socket.AF_UNIX) as unix_socket,
        contextlib.chdir(path.parent),
    ):  # a socket's path has at most 107 bytes
        unix_socket.bind(path.name)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2_000_000_000)


def _duplicate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b"{", b'{"kind": "other", ', 1) if content.startswith(b"{") else content * 2)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a FIFO": _replace_with(os.mkfifo),
    "a link to an endless device": _replace_with(lambda path: path.symlink_to("/dev/zero")),
    "a link to nothing": _replace_with(lambda path: path.symlink_to("nothing")),
    "a link to itself": _replace_with(lambda path: path.symlink_to(path.name)),
    "a folder": _replace_with(Path.mkdir),
    "a socket": _replace_with(_socket),
    "2 GB": _replace_with(_sparse),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "NULs": lambda path: path.write_bytes(path.read_bytes().replace(b"1", b"\0")),
    "no UTF-8": lambda path: path.write_bytes(path.read_bytes().replace(b"a", b"\xff")),
    "lists in lists": lambda path: path.write_bytes(b"[" * DEEP + b"]" * DEEP),
    "objects in objects": lambda path: path.write_bytes(b'{"started":' * DEEP + b"1" + b"}" * DEEP),
    "millions of values": lambda path: path.write_bytes(b"[" + b"[]," * 9_000_000 + b"1]"),
    "a key twice": _duplicate,
    "a number of thousands of digits": lambda path: path.write_bytes(b"[" + b"9" * 5000 + b"]"),
    "no number": lambda path: path.write_bytes(b'{"a": NaN, "started": 1e999}'),
}


def named_cases() -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Yield every damage to every file, then checksummed records with one absurd value each."""
    for (damage, change), name in itertools.product(DAMAGE.items(), FILES):
        yield f"{name}: {damage}", lambda folder, change=change, name=name: change(folder / name)
    result = "trials/baseline.worker-1/result.json"
    for key_path, value in itertools.product(
        (
            ("steps", "step_time_sec", 0),
            ("steps", "tokens", 0),
            ("steps", "samples", 0),
            ("steps", "loss", 0),
            ("fingerprint", "cpu_allowed_cores"),
            ("attempt",),
            ("wall_time_sec",),
            ("metrics", "peak_rss_bytes"),
        ),
        (5e-324, 1e308, 2**63, 2**70, 10**400, -1, "text"),
    ):
        if (key_path[-2:], value) not in VALID_COMBINATIONS:
            yield f"{key_path} is {value!r:.20}", _with_value(result, key_path, value)
    for name in ("peak_vram_bytes", "peak_rss_bytes"):
        yield f"('metrics', '{name}') is 0", _with_value(result, ("metrics", name), 0)
    for kind, key in (("ddp-2", "world_size"), ("hardware", "size")):
        for value in (0, None):
            name, key_path = f"trials/{kind}.worker-1/result.json", ("measurements", 0, "context", key)
            yield f"{name}: {key_path} is {value}", _with_value(name, key_path, value)


def _with_value(name: str, key_path: tuple[Any, ...], value: Any) -> Callable[[Path], None]:
    return lambda folder: rewrite_checksummed(folder / name, lambda document: set_value(document, key_path, value))


def damage_at_random(random_source: random.Random, folder: Path) -> str:
    """Damage `folder` in one to three ways and return their description."""
    descriptions = []
    for _ in range(random_source.choice((1, 1, 2, 3))):
        name = random_source.choice(FILES)
        path = folder / name
        if path.is_symlink() or not path.is_file() or path.stat().st_size > 1_000_000:
            continue  # too damaged for another change
        if random_source.random() < 0.15 or name not in CHECKSUMMED:
            damage = random_source.choice(list(DAMAGE))
            DAMAGE[damage](path)
            descriptions.append(f"{name}: {damage}")
            continue
        try:
            key_path = random_source.choice(
                [candidate for candidate in key_paths(json.loads(path.read_text())) if candidate != ("sha256",)]
            )
        except (ValueError, AttributeError, TypeError, RecursionError, IndexError):  # not JSON any more
            continue
        value = random_source.choice(VALUES)
        with contextlib.suppress(KeyError, RecursionError, ValueError):
            rewrite_checksummed(path, partial(set_value, key_path=key_path, value=value))
        descriptions.append(f"{name}: {key_path} is {value!r:.40}")
    if random_source.random() < 0.05:
        os.mkdir(os.fsencode(folder / "trials") + b"/\xff\xfe")
        descriptions.append("a folder whose name is not UTF-8")
    return "; ".join(descriptions)


def build_in_memory(folder: Path, *, figure_number: int | None = None) -> Run | None:
    """Build all parts of the report of `folder`, with figure number `figure_number`; None if its plan is invalid."""
    try:
        run = load(folder)
    except ReportError as error:
        if "\n" in str(error):
            raise
        return None
    summary = summarize(run)
    tables.summary_json(summary, run), tables.summary_csv(summary)
    for frame in (run.trials, run.steps, run.measurements, tables.costs(summary)):
        tables.to_csv(frame)
    drawings = [(chart, drawing) for chart in CHARTS if (drawing := chart.gather(summary, run)) is not None]
    selected = [] if figure_number is None or not drawings else [drawings[figure_number % len(drawings)]]
    pictures = [renderer.draw_picture(chart.name, chart.title, drawing) for chart, drawing in selected]
    html.render(summary, run, pictures).encode()
    markdown.render(summary, pictures).encode()
    return run


def _run_case(valid_run: Path, number: int, seed: int) -> int:
    """Run one generated case and return the exit status of this process: 0 if it passes."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        shutil.copytree(valid_run, folder)
        description = damage_at_random(random.Random(f"{seed} {number}"), folder)
        print(f"case {number}: {description}", file=sys.stderr, flush=True)
        signal.alarm(HANG_SEC)
        signal.setitimer(signal.ITIMER_PROF, MAX_SEC)
        try:
            build_in_memory(folder, figure_number=None if number % 40 else number // 40)
        except Exception:  # noqa: BLE001 - any exception is a failure
            traceback.print_exc()
            return 1
    return 0


def try_every_key() -> None:
    """Set every key of every checksummed file to each of BASIC_VALUES; print each line of code that raises."""
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as parent:
        valid_run = Path(parent) / "good"
        write(valid_run)
        for name in CHECKSUMMED:
            path = valid_run / name
            original = path.read_bytes()
            for key_path, value in itertools.product(key_paths(json.loads(original)), BASIC_VALUES):
                rewrite_checksummed(path, partial(set_value, key_path=key_path, value=value))
                try:
                    build_in_memory(valid_run)
                except Exception as error:  # noqa: BLE001 - any exception is a failure
                    frame = traceback.extract_tb(error.__traceback__)[-1]
                    failures.setdefault(
                        f"{frame.filename}:{frame.lineno}: {error!r}", f"{name}: {key_path} is {value!r}"
                    )
                path.write_bytes(original)
    for location, change in failures.items():
        print(f"{change}: {location}")
    sys.exit(1 if failures else 0)


def main(cases: int = 10_000, seed: int = 1, first: int = 0) -> None:
    outcomes: Counter[str] = Counter()
    max_memory, slowest, started_at = 0, 0.0, time.monotonic()
    with tempfile.TemporaryDirectory() as parent:
        valid_run = Path(parent) / "good"
        write(valid_run)
        build_in_memory(valid_run, figure_number=0)
        gc.freeze()  # keeps pages shared with the forked cases
        for number in range(first, cases):
            case_started = time.monotonic()
            child = os.fork()
            if child == 0:
                code = 1
                with contextlib.suppress(BaseException):
                    code = _run_case(valid_run, number, seed)
                os._exit(code)
            _, status, usage = os.wait4(child, 0)
            code = os.waitstatus_to_exitcode(status)
            memory = usage.ru_maxrss * 1024
            max_memory, slowest = max(max_memory, memory), max(slowest, time.monotonic() - case_started)
            outcome = OUTCOMES.get(code, f"exit {code}")
            if memory > MAX_BYTES:
                outcome = f"{outcome}, more than 600 MB"
            outcomes[outcome] += 1
            if code < 0:
                print(f"case {number}: {outcome}", flush=True)
            if number % 1000 == 999:
                print(f"up to {number + 1:,}, {time.monotonic() - started_at:.0f} s: {dict(outcomes)}", flush=True)
    print(f"{dict(outcomes)}; slowest {slowest:.2f} s, most memory {max_memory / 1e6:.0f} MB")
    sys.exit(0 if set(outcomes) == {"well"} else 1)


if __name__ == "__main__":
    try_every_key() if sys.argv[1:] == ["every"] else main(*map(int, sys.argv[1:]))
