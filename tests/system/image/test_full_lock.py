"""The real locks (gigabytes), installed like in the Dockerfile and verified by the image's self-check.

Optional: QLORA_FLEET_FULL_LOCK=1 pytest tests/system/image/test_full_lock.py, with the profiles' Pythons and a package
index. Not covered: the image itself, whose CUDA base cannot be pulled on a closed network.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT

PROFILES = yaml.safe_load((ROOT / "image" / "profiles.yaml").read_text())


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("profile", PROFILES)
def test_the_complete_lock_installs_with_its_hashes_and_a_trial_runs(profile: str, tmp_path: Path) -> None:
    if not os.environ.get("QLORA_FLEET_FULL_LOCK"):
        pytest.skip("downloads gigabytes; set QLORA_FLEET_FULL_LOCK=1")
    python = shutil.which(f"python{PROFILES[profile]['python']}")
    if python is None or subprocess.run((python, "-V"), capture_output=True, check=False, timeout=60).returncode != 0:
        pytest.skip(f"no Python {PROFILES[profile]['python']} on this machine")
    # Ignore this machine's index, wheel cache and configuration: the lock was made from PyPI.
    environment = {name: value for name, value in os.environ.items() if name not in ("PIP_FIND_LINKS", "PYTHONPATH")}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*argv: str) -> str:
        done = subprocess.run(
            argv, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=3000
        )
        assert done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    run(python, "-m", "venv", str(tmp_path / "venv"))
    venv_python = str(tmp_path / "venv" / "bin" / "python")
    lock = str(ROOT / "image" / "locks" / f"{profile}.txt")
    flags = ("--no-compile", "--only-binary", ":all:", "--require-hashes", "--requirement", lock)
    run(venv_python, "-m", "pip", "install", *flags)
    (tmp_path / "locks").mkdir()
    for path in (ROOT / "image" / "locks").glob(f"{profile}.*"):
        shutil.copy(path, tmp_path / "locks")
    shutil.copy(ROOT / "image" / "selfcheck.py", tmp_path)
    assert "WRONG" not in run(venv_python, str(tmp_path / "selfcheck.py"))
    if PROFILES[profile]["runs_on_cpu"]:
        assert "two-step trial: SUCCEEDED" in run(venv_python, "-m", "bench", "selfcheck")
