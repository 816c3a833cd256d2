"""The image's files, with real processes: hadolint, a compiler, sh."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

IMAGE = ROOT / "image"


def test_hadolint_reports_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run((program, IMAGE / "Dockerfile"), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(("variables", "pattern"), [
    ({"PATH": "/usr/bin"}, ""),
    ({"PATH": "/nowhere"}, "triton: no C compiler .*"),
    ({"CC": "/bin/false"}, "triton: /bin/false .*exit code 1"),
    ({"CC": "/no/cc"}, r"triton: /no/cc: \[Errno 2\] No such file or directory: '/no/cc'"),
])  # fmt: skip
def test_the_self_check_tries_to_build_like_triton(variables: dict[str, str], pattern: str) -> None:
    """Uses this machine's Python and compiler. Not covered: building Triton's own source, which needs a driver."""
    if "CC" not in variables and not Path("/usr/bin/gcc").exists():
        pytest.skip("gcc is not installed")
    check = "import selfcheck; print(*selfcheck.check_compiler({'triton': '3.6.0'}))"
    argv = ("/usr/bin/python3", "-c", check)
    done = subprocess.run(argv, env=variables, cwd=IMAGE, capture_output=True, text=True, check=True, timeout=60)
    assert re.fullmatch(pattern, done.stdout.strip())


def test_the_apt_snapshot_replaces_the_archive_in_every_source(tmp_path: Path) -> None:
    """Runs the Dockerfile's lines on the sources of Ubuntu and NVIDIA, without network."""
    lines = (IMAGE / "Dockerfile").read_text().split('if [ -n "${APT_SNAPSHOT}" ]; then', 1)[1].split("    fi; ", 1)[0]
    script = re.sub(r"\\\n", "\n", lines.replace("/etc/apt", str(tmp_path)))
    script = re.sub(r"\n\s*-e", " -e", script)
    (tmp_path / "apt.conf.d").mkdir()
    nvidia = "deb https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64 /"
    (tmp_path / "ubuntu.sources").write_text(
        "URIs: http://archive.ubuntu.com/ubuntu/\nURIs: http://security.ubuntu.com/ubuntu\n"
    )
    (tmp_path / "cuda.list").write_text(f"{nvidia}\n")
    moment = "20260901T000000Z"
    subprocess.run(
        ["sh", "-euc", script], env={"PATH": "/usr/bin:/bin", "APT_SNAPSHOT": moment}, check=True, timeout=60
    )
    ubuntu = f"https://snapshot.ubuntu.com/ubuntu/{moment}/"
    assert (tmp_path / "ubuntu.sources").read_text() == f"URIs: {ubuntu}\nURIs: {ubuntu}\n"
    assert (tmp_path / "cuda.list").read_text() == f"{nvidia}\n"
    assert "Check-Valid-Until" in (tmp_path / "apt.conf.d" / "99snapshot").read_text()
