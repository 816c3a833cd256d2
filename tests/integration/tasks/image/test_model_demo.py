"""`inv model.demo` starts `python -m bench demo` where the settings say, and passes on how it ended."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import ROOT

Inv = Callable[..., "subprocess.CompletedProcess[str]"]

MODEL = "my models/it's"
STAND_IN = """
import os, sys
print(sys.argv[1:])
print(os.environ.get("SAYS", ""), file=sys.stderr)
sys.exit(int(os.environ.get("ENDS", "0")))
"""


@pytest.fixture
def demo(project: Path, inv: Inv) -> Inv:
    """`inv model.demo` with a bench that says its arguments and ends as $ENDS asks for."""
    (project / "bench").mkdir()
    (project / "bench" / "__init__.py").touch()
    (project / "bench" / "records").symlink_to(ROOT / "bench" / "records")  # the tasks import it too
    (project / "bench" / "__main__.py").write_text(STAND_IN)
    return inv


def test_it_makes_the_model_and_data_the_settings_name(project: Path, demo: Inv) -> None:
    ended = demo("model.demo", env={"INVOKE_MODEL_PATH": MODEL, "INVOKE_DATA_PATH": "/srv/d.jsonl"})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"{['demo', '--model', str(project / MODEL), '--data', '/srv/d.jsonl']}\n"


def test_what_demo_refuses_is_one_line_and_exit_2(demo: Inv) -> None:
    ended = demo("model.demo", env={"ENDS": "2", "SAYS": "d.jsonl: changed since demo made it"})
    assert (ended.returncode, ended.stderr) == (2, "model.demo: d.jsonl: changed since demo made it\n")


def test_any_other_end_names_the_command_and_its_last_words(project: Path, demo: Inv) -> None:
    ended = demo("model.demo", env={"ENDS": "7", "SAYS": "Traceback\nOSError: full"})
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"model.demo: exit 7: cd {project} && ")
    assert ended.stderr.endswith(": OSError: full\n")
    assert ended.stderr.count("\n") == 1
