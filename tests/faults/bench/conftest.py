"""Trials that can be killed: each runs in its own session, and none of its processes outlives the test."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.records import Trial
from tests.support import tiny_training
from tests.support.forked import ForkServer
from tests.support.hosts.rank_pids import SILENCE_SEC, kill_trials

MAKE_MODEL = """from pathlib import Path
from bench import torch_stack
from tests.support import tiny_training
tiny_training.make_folder(torch_stack.load(), Path({folder!r}), layers=1)
"""


@pytest.fixture
def start(
    bench_environment: dict[str, str], bench_server: ForkServer, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts `python -m bench run` on a trial.

    `before` is code that the process runs before the bench, e.g. to limit its resources. With `new_interpreter` the
    process is not forked from the server that has imported the stack.
    """
    started: list[subprocess.Popen[str]] = []

    def run(
        trial: Trial,
        out: Path,
        *,
        before: str = "pass",
        new_interpreter: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        file = tmp_path / f"trial-{len(started)}.json"
        file.write_text(trial.to_text())
        code = f"{before}\nimport runpy, sys\nsys.argv[0] = 'bench'\nrunpy.run_module('bench', run_name='__main__')"
        argv = ("-c", code, "run", "--trial", str(file), "--out", str(out), "--worker", "it's w-1")
        options = {"env": bench_environment | dict(variables or {}), "start_new_session": True}
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        if new_interpreter:
            process = subprocess.Popen((sys.executable, *argv), **options)
        else:
            process = bench_server.start(*argv, **options)
        started.append(process)
        return process

    yield run
    kill_trials(started)


@pytest.fixture
def start_ranks(start, make_trial, tiny_model: Path, tiny_data: Path) -> Callable[..., subprocess.Popen[str]]:
    """Return a function like `start`, for a trial of two ranks whose result and temporary files are in `home`."""

    def run(home: Path, *, variables: Mapping[str, str] | None = None, **changes: Any) -> subprocess.Popen[str]:
        (home / "tmp").mkdir(parents=True)
        options = {name: changes.pop(name) for name in ("before", "new_interpreter") if name in changes}
        fields = {"kind": "distributed", "world_size": 2, "model": str(tiny_model), "data": str(tiny_data)}
        defaults = {"TMPDIR": str(home / "tmp"), "QLORA_FLEET_SILENCE_SEC": str(SILENCE_SEC)}
        return start(make_trial(**(fields | changes)), home, variables={**defaults, **(variables or {})}, **options)

    return run


@pytest.fixture(scope="session")
def tiny_inputs(
    bench_environment: dict[str, str], bench_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A model of one layer and data for it, made by a process that has imported the stack: this one need not."""
    root = tmp_path_factory.mktemp("inputs")
    model, code = root / "models" / "tiny--tiny", MAKE_MODEL.format(folder=str(root / "models" / "tiny--tiny"))
    with bench_server.start("-c", code, env=bench_environment) as process:
        assert process.wait(timeout=240) == 0
    return model, tiny_training.make_data(root / "chats.jsonl")
