"""`python -m bench` reads and writes UTF-8 whatever the locale is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT


@pytest.mark.parametrize(
    "locale", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_texts_are_utf8_in_every_locale(locale: dict[str, str], tiny_model: Path, tmp_path: Path) -> None:
    line = {"messages": [{"role": "user", "content": "日本 😀?"}, {"role": "assistant", "content": "Größe"}]}
    (tmp_path / "d.json").write_bytes(b"\xef\xbb\xbf" + json.dumps([line], ensure_ascii=False).encode())
    spec = {"files": [str(tmp_path / "d.json")], "weights": [1.0], "max_seq_len": 200, "system": "Bitte höflich: ☺"}
    done = subprocess.run(
        (sys.executable, "-m", "bench", "data", "--model", str(tiny_model), "--spec", "-"),
        cwd=ROOT, env={**os.environ, **locale}, input=json.dumps(spec, ensure_ascii=False).encode(),
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.decode()) == (0, "")
    (shown,) = json.loads(done.stdout.decode("utf-8"))["shown"]
    text = "".join(part["text"] for part in shown["parts"])
    assert all(part in text for part in ("日本 😀?", "Größe", "Bitte höflich: ☺"))
