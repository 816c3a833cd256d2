"""Trials that can be killed: each runs in its own session, and none of its processes outlives the test."""

import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.records import Trial
from tests.support import tiny_training
from tests.support.forked import ForkServer
from tests.support.hosts.rank_pids import kill_trials

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

    `before` is code that the process runs before the bench, e.g. to limit its resources.
    """
    started: list[subprocess.Popen[str]] = []

    def run(
        trial: Trial, out: Path, *, before: str = "pass", variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        file = tmp_path / f"trial-{len(started)}.json"
        file.write_text(trial.to_text())
        code = f"{before}\nimport runpy, sys\nsys.argv[0] = 'bench'\nrunpy.run_module('bench', run_name='__main__')"
        argv = ("-c", code, "run", "--trial", str(file), "--out", str(out), "--worker", "it's w-1")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = bench_environment | dict(variables or {})
        started.append(bench_server.start(*argv, env=environment, start_new_session=True, **pipes))
        return started[-1]

    yield run
    kill_trials(started)


@pytest.fixture
def start_ranks(start, make_trial, tiny_model: Path, tiny_data: Path) -> Callable[..., subprocess.Popen[str]]:
    """Return a function like `start`, for a trial of two ranks whose result and temporary files are in `home`."""

    def run(
        home: Path, *, before: str = "pass", variables: Mapping[str, str] | None = None, **changes: Any
    ) -> subprocess.Popen[str]:
        (home / "tmp").mkdir(parents=True)
        fields = {"kind": "distributed", "world_size": 2, "model": str(tiny_model), "data": str(tiny_data)}
        variables = {"TMPDIR": str(home / "tmp"), **(variables or {})}
        return start(make_trial(**(fields | changes)), home, before=before, variables=variables)

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
