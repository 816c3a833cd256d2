"""Hostile run folders: non-regular files, damaged JSON, and checksummed records with absurd values."""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.records import checksummed
from tests.support.reports import synthetic

RESULT = "trials/baseline.worker-1/result.json"
FILES = ("run.json", "ledger.jsonl", RESULT)
DEEP = 3000


def write(folder: Path) -> None:
    """Write a small valid run with every workload, and a ledger."""
    folder.mkdir(parents=True)
    trials = (*(synthetic.trial(name, measured_steps=4) for name in ("baseline", "other")), *synthetic.other_kinds())
    synthetic.write_run(folder, synthetic.record(trials, workers=1))
    events = [
        {"time": "2026-03-01T10:15:04+00:00", "event": "started", "trial_id": f"{trial.name}.worker-1", "attempt": 1}
        for trial in trials
    ]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


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


def _replace_with(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2_000_000_000)


def _duplicate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b"{", b'{"kind": "other", ', 1) if content.startswith(b"{") else content * 2)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a FIFO": _replace_with(os.mkfifo),
    "a link to an endless device": _replace_with(lambda path: path.symlink_to("/dev/zero")),
    "a folder": _replace_with(Path.mkdir),
    "2 GB": _replace_with(_sparse),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "no UTF-8": lambda path: path.write_bytes(path.read_bytes().replace(b"a", b"\xff")),
    "lists in lists": lambda path: path.write_bytes(b"[" * DEEP + b"]" * DEEP),
    "millions of values": lambda path: path.write_bytes(b"[" + b"[]," * 9_000_000 + b"1]"),
    "a key twice": _duplicate,
    "a number of thousands of digits": lambda path: path.write_bytes(b"[" + b"9" * 5000 + b"]"),
    "no number": lambda path: path.write_bytes(b'{"a": NaN, "started": 1e999}'),
}


def named_cases() -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Yield every damage to every file, then checksummed records with one absurd value each."""
    for (damage, change), name in itertools.product(DAMAGE.items(), FILES):
        yield f"{name}: {damage}", lambda folder, change=change, name=name: change(folder / name)
    for key_path, values in (
        (("steps", "step_time_sec", 0), (5e-324, -1, "text")),
        (("steps", "tokens", 0), (2**63, 10**400, -1)),
        (("steps", "samples", 0), (5e-324, 1e308, -1)),
        (("steps", "loss", 0), (1e308,)),
        (("fingerprint", "cpu_allowed_cores"), (2**70, -1, 1.5, "text")),
        (("attempt",), (0, 2**63)),
        (("wall_time_sec",), (1e308, -1)),
        (("phases", "load"), (1e308, -1)),
        (("metrics", "peak_vram_bytes"), (0,)),
        (("metrics", "peak_rss_bytes"), (0, 10**400)),
    ):
        for value in values:
            yield f"{key_path} is {value!r:.20}", _with_value(RESULT, key_path, value)
    for kind, key in (("ddp-2", "world_size"), ("hardware", "size")):
        for value in (0, None):
            name, key_path = f"trials/{kind}.worker-1/result.json", ("measurements", 0, "context", key)
            yield f"{name}: {key_path} is {value}", _with_value(name, key_path, value)


def _with_value(name: str, key_path: tuple[Any, ...], value: Any) -> Callable[[Path], None]:
    return lambda folder: rewrite_checksummed(folder / name, lambda document: set_value(document, key_path, value))
