"""`python -m bench` reads and writes UTF-8 whatever the locale is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.records.training import TrainingData
from tests.support import tiny_training
from tests.support.paths import ROOT


@pytest.mark.parametrize(
    "locale", [{"PYTHONIOENCODING": "latin-1", "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_texts_are_utf8_in_every_locale(locale: dict[str, str], tiny_model: Path, tmp_path: Path) -> None:
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
