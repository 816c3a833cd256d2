"""Check of the installation: imports the torch stack, names the device, and runs a trial of two steps."""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.data import demo
from bench.data.inputs import InputError
from bench.harness.record import Request
from bench.machine import fingerprint
from bench.machine.preflight import check, require_gpus_for
from bench.records import suite


def selfcheck() -> int:
    """Print the versions and a trial's log, which names the device; return 0 if it succeeds. Raises InputError."""
    facts = fingerprint.host_facts() | fingerprint.device_facts(_load_stack().torch)
    for name in ("python", *fingerprint.PACKAGES):
        print(f"{name:>14} {facts[name] or 'not installed'}")
    with tempfile.TemporaryDirectory(prefix="bench-selfcheck-") as folder:
        return _run_two_steps(Path(folder))


def preflight() -> int:
    """Print the GPU and the versions for trials of the profile gpu as one JSON line. Raises InputError."""
    require_gpus_for("gpu")
    modules = _load_stack()
    for trial in suite("recipes", "gpu", "MODEL", "DATA"):
        check(modules, trial)
    facts = fingerprint.device_facts(modules.torch) | fingerprint.host_facts()
    print(json.dumps({name: facts.get(name) for name in ("gpu_name", "gpu_driver", "cuda", *fingerprint.PACKAGES)}))
    return 0


def _load_stack() -> torch_stack.Stack:
    """Import torch and its libraries. Raises InputError."""
    try:
        return torch_stack.load()
    except ImportError as error:
        raise InputError(
            f"torch and its libraries cannot be imported: {error}",
            remedy="install them with: pip install 'qlora-fleet[bench]'",
        ) from error


def _run_two_steps(folder: Path) -> int:
    from bench.commands.run import run  # imports the stack, which `_load_stack` has found

    model, data = folder / "model", folder / "chats.jsonl"
    texts = [f"The number {number} follows the number {number - 1}." for number in range(1, 65)]
    chats = (json.dumps({"prompt": "Which number follows?", "completion": text}) for text in texts)
    data.write_text("\n".join(chats), encoding="utf-8")
    model.mkdir()
    demo.build_tokenizer(model, texts)
    demo.build_model(model, num_hidden_layers=1)
    (trial, *_) = suite("quick", "tiny", str(model), str(data))
    sizes: dict[str, Any] = {"max_seq_len": 32, "micro_batch_size": 2, "warmup_steps": 0, "measured_steps": 2}
    return run(
        dataclasses.replace(trial, name="selfcheck", reason="does a trial run here?", suite="selfcheck", **sizes),
        Request(out=folder / "out"),
    )
