"""The demo's model and data are made whole, once, and always the same; the self-check runs a trial on such a model."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
WAIT_SEC = 240.0


@pytest.fixture
def demo_in(bench_environment, bench_server):
    def start(folder: Path) -> subprocess.Popen[str]:
        model, data = folder / "models" / "a--b", folder / "data" / "chats.jsonl"
        words = ("-m", "bench", "demo", "--model", str(model), "--data", str(data))
        return bench_server.start(
            *words, env=bench_environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


def test_a_killed_demo_leaves_no_model_and_the_next_makes_the_same_as_ever(demo_in, tmp_path, tiny_model, demo_data):
    process = demo_in(tmp_path)
    deadline = time.monotonic() + WAIT_SEC
    while not list(tmp_path.glob("models/.a--b.*.part/model.safetensors")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "models" / "a--b").exists()

    again = demo_in(tmp_path)
    assert (again.communicate(timeout=WAIT_SEC)[1], again.returncode) == ("", 0)
    assert (tmp_path / "models/a--b/SHA256SUMS").read_text() == (tiny_model / "SHA256SUMS").read_text()
    assert (tmp_path / "data/chats.jsonl").read_bytes() == demo_data.read_bytes()

    verified = demo_in(tmp_path)
    said, _ = verified.communicate(timeout=WAIT_SEC)
    assert [line.split()[0] for line in said.splitlines()] == ["verified", "verified"]


def test_the_selfcheck_runs_a_trial_where_one_can_run(bench_environment, bench_server, tmp_path):
    """The trial is a process of its own, as ever."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with bench_server.start("-m", "bench", "selfcheck", env=bench_environment, cwd=tmp_path, **pipes) as process:
        said, complaint = process.communicate(timeout=WAIT_SEC)
    assert (process.returncode, complaint) == (0, "")
    assert "no CUDA device is visible, so trials run on the CPU" in said
    assert said.splitlines()[-1] == "two-step trial: SUCCEEDED"


def test_the_selfcheck_names_what_is_missing(bench_environment, bench_server, tmp_path):
    (tmp_path / "bitsandbytes.py").write_text("raise ImportError('libcudart.so.12 is missing')")
    environment = bench_environment | {"PYTHONPATH": f"{tmp_path}:{bench_environment['PYTHONPATH']}"}
    anew = "import runpy, sys; del sys.modules['bitsandbytes']; runpy.run_module('bench', run_name='__main__')"
    with bench_server.start("-c", anew, "selfcheck", env=environment, stdout=subprocess.PIPE, text=True) as process:
        said, _ = process.communicate(timeout=WAIT_SEC)
    assert process.returncode == 1
    assert "libcudart.so.12 is missing; install " in said
