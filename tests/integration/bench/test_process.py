"""The process of `python -m bench`: its imports on an image's oldest Python, its encoding, and a dump of its stacks.

Not covered on the oldest Python: what runs only with torch, which it lacks here.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from bench.records.training import TrainingData
from tests.support import tiny_training
from tests.support.faults import wait_for
from tests.support.hosts.pythons import other_python
from tests.support.paths import ROOT

PROGRAM = """
import importlib, json, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import bench
missing = set()
for module in pkgutil.walk_packages(bench.__path__, "bench."):
    if module.name != "bench.__main__":
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            missing.add(error.name)
print(json.dumps(sorted(missing)))
"""


def test_every_module_imports_but_for_installed_libraries():
    argv = (other_python("3.10"), "-I", "-S", "-B", "-c", PROGRAM, str(ROOT))
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120)
    assert set(json.loads(done.stdout)) <= {"jwt", "oci", "pyarrow", "safetensors", "torch", "triton"}


def handles(pid: int, number: signal.Signals) -> bool:
    """Check whether a process handles this signal; until then the signal would end it."""
    fields = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    return bool(int(fields.get("SigCgt", "0"), 16) >> (number - 1) & 1)


def test_sigusr1_dumps_the_stacks_and_the_program_goes_on() -> None:
    argv = (sys.executable, "-m", "bench", "forecast", "--trial", "-")
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, cwd=ROOT, **pipes) as process:
        wait_for(lambda: handles(process.pid, signal.SIGUSR1))
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate("not JSON", timeout=120)
    assert "most recent call first" in err
    assert "bench" in err
    assert process.returncode == 2, "it went on to read the specification"


def test_texts_are_utf8_in_every_locale(tiny_model: Path, tmp_path: Path) -> None:
    locale = {"PYTHONIOENCODING": "latin-1", "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    line = {"messages": [{"role": "user", "content": "日本 😀?"}, {"role": "assistant", "content": "Größe"}]}
    (tmp_path / "d.json").write_bytes(b"\xef\xbb\xbf" + json.dumps([line], ensure_ascii=False).encode())
    data = TrainingData(files=[str(tmp_path / "d.json")], max_seq_len=200, system="Bitte höflich: ☺")
    trial = tiny_training.plan(
        tiny_model, tmp_path / "d.json", max_seq_len=200, training={"data": data, "evaluate_every": 0}
    )
    done = subprocess.run(
        (sys.executable, "-m", "bench", "forecast", "--trial", "-"),
        cwd=ROOT, env={**os.environ, **locale}, input=trial.to_text().encode(),
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.decode()) == (0, "")
    (shown,) = json.loads(done.stdout.decode("utf-8"))["data"]["shown"]
    text = "".join(part["text"] for part in shown["parts"])
    assert all(part in text for part in ("日本 😀?", "Größe", "Bitte höflich: ☺"))
