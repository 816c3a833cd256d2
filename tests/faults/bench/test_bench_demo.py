"""The demo's model and data, which are written atomically and reproducibly; the self-check's trial on such a model."""

import signal
import subprocess
from pathlib import Path

import pytest

from bench.records.status import ExitCode
from tests.support.hosts.local_fleet import fill_disk, wait_for

pytestmark = pytest.mark.slow
WAIT_SEC = 240.0


@pytest.fixture
def start_demo(bench_environment, bench_server):
    def start(folder: Path) -> subprocess.Popen[str]:
        model, data = folder / "models" / "a--b", folder / "data" / "chats.jsonl"
        argv = ("-m", "bench", "demo", "--model", str(model), "--data", str(data))
        return bench_server.start(
            *argv, env=bench_environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


def test_a_killed_demo_leaves_no_model_and_the_next_one_is_reproducible(start_demo, tmp_path, tiny_model, demo_data):
    process = start_demo(tmp_path)
    wait_for(lambda: [*tmp_path.glob("models/.a--b.*.part/model.safetensors")], "a part of the model", WAIT_SEC)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "models" / "a--b").exists()

    second = start_demo(tmp_path)
    assert (second.communicate(timeout=WAIT_SEC)[1], second.returncode) == ("", 0)
    assert (tmp_path / "models/a--b/SHA256SUMS").read_text() == (tiny_model / "SHA256SUMS").read_text()
    assert (tmp_path / "data/chats.jsonl").read_bytes() == demo_data.read_bytes()


def test_a_demo_on_a_full_disk_names_the_file(start_demo, small_disk):
    fill_disk(small_disk)
    error, code = (process := start_demo(small_disk)).communicate(timeout=WAIT_SEC)[1], process.wait()
    assert (code, error.count("\n")) == (ExitCode.RETRYABLE, 1)
    assert error.startswith(f"{small_disk}/")


def test_the_selfcheck_runs_a_trial(bench_environment, bench_server, tmp_path):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with bench_server.start("-m", "bench", "selfcheck", env=bench_environment, cwd=tmp_path, **pipes) as process:
        out, err = process.communicate(timeout=WAIT_SEC)
    assert (process.returncode, err) == (0, "")
    assert " device cpu in " in out
    assert " SUCCEEDED selfcheck " in out.splitlines()[-1]


def test_the_selfcheck_names_a_missing_library(bench_environment, bench_server, tmp_path):
    (tmp_path / "bitsandbytes.py").write_text("raise ImportError('libcudart.so.12 is missing')")
    environment = bench_environment | {"PYTHONPATH": f"{tmp_path}:{bench_environment['PYTHONPATH']}"}
    code = "import runpy, sys; del sys.modules['bitsandbytes']; runpy.run_module('bench', run_name='__main__')"
    with bench_server.start("-c", code, "selfcheck", env=environment, stderr=subprocess.PIPE, text=True) as process:
        _, error = process.communicate(timeout=WAIT_SEC)
    assert process.returncode == ExitCode.BAD_INPUT
    assert "libcudart.so.12 is missing; " in error
