"""`inv model.demo`: starts `python -m bench demo` with the settings' paths and passes on its result."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import ROOT

Inv = Callable[..., "subprocess.CompletedProcess[str]"]

MODEL = "my models/it's"
FAKE_BENCH = """
import os, sys
print(sys.argv[1:])
print(os.environ.get("FAKE_STDERR", ""), file=sys.stderr)
sys.exit(int(os.environ.get("FAKE_EXIT", "0")))
"""


@pytest.fixture
def demo(project: Path, inv: Inv) -> Inv:
    """Run `inv model.demo` with a bench that prints its arguments and $FAKE_STDERR, and exits with $FAKE_EXIT."""
    (project / "bench").mkdir()
    (project / "bench" / "__init__.py").touch()
    (project / "bench" / "records").symlink_to(ROOT / "bench" / "records")  # the tasks import it too
    (project / "bench" / "__main__.py").write_text(FAKE_BENCH)
    return inv


def test_it_makes_the_model_and_data_the_settings_name(project: Path, demo: Inv) -> None:
    ended = demo("model.demo", env={"INVOKE_MODEL_PATH": MODEL, "INVOKE_DATA_PATH": "/srv/d.jsonl"})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"{['demo', '--model', str(project / MODEL), '--data', '/srv/d.jsonl']}\n"


@pytest.mark.parametrize(
    ("code", "exit_code", "remedy"), [(2, 2, ""), (1, 1, "check "), (3, 3, "check "), (7, 1, "check ")]
)
def test_the_last_line_of_a_failed_demo_is_the_error(demo: Inv, code: int, exit_code: int, remedy: str) -> None:
    ended = demo("model.demo", env={"FAKE_EXIT": str(code), "FAKE_STDERR": "Traceback\ndata/d.jsonl: No right"})
    assert ended.returncode == exit_code
    assert re.fullmatch(rf"model\.demo: data/d\.jsonl: No right(; {remedy}.*)?\n", ended.stderr)
    assert remedy in ended.stderr
