"""The real `inv`, as a process: what is seen when settings are wrong, and how a chain of tasks ends."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

INV = Path(sys.executable).with_name("inv")

Inv = Callable[..., "subprocess.CompletedProcess[str]"]

EXTRA_TASKS = """
import time
from invoke.tasks import task
from tasks.errors import Refused, SomeTrialsFailed


@task
def looks(context):
    print("looks")


@task
def fails_some(context):
    raise SomeTrialsFailed("2 of 8 trials failed")


@task
def refuses(context):
    raise Refused("not safe:\\nsecond line")


@task
def waits(context):
    print("waiting", flush=True)
    time.sleep(60)


for extra in (looks, fails_some, refuses, waits):
    ns.add_task(extra)
"""


@pytest.fixture
def chain(project: Path, inv: Inv) -> Inv:
    """`inv` with four more tasks that end in the ways a task can."""
    with (project / "tasks" / "__init__.py").open("a") as file:
        file.write(EXTRA_TASKS)
    return inv


@pytest.mark.parametrize(
    ("spoiled", "text", "message"),
    [
        ("f.yaml", "fleet: {size: x}", 'f.yaml:1: fleet.size: expected a whole number from 1 to 1024, found "x"'),
        ("f.yaml", "fleet: [", "f.yaml:1: not YAML: expected the node content, but found '<stream end>'"),
        ("f.yaml", "[1]", "f.yaml:1: expected sections such as `fleet:`, found a list"),
        ("f.yaml", "run: 3", "f.yaml:1: run: expected a section, found 3"),
        ("f.yaml", "fleet: {size: !!int x}", "f.yaml:1: not YAML: x is no int"),
        ("f.yaml", None, "f.yaml: no such file, but -f (or INVOKE_RUNTIME_CONFIG) names it"),
        ("invoke.yaml", "fleet: [", "invoke.yaml:1: not YAML: expected the node content, but found '<stream end>'"),
        ("invoke.yaml", "[1]", "invoke.yaml:1: expected sections such as `fleet:`, found a list"),
        ("invoke.yaml", None, "invoke.yaml: no such file; `git checkout invoke.yaml` brings it back"),
    ],
)
def test_bad_settings_are_one_line_and_exit_2(
    spoiled: str, text: str | None, message: str, project: Path, inv: Inv
) -> None:
    (project / spoiled).unlink(missing_ok=True)
    if text is not None:
        (project / spoiled).write_text(text)
    ended = inv(*(["-f", "f.yaml"] if spoiled == "f.yaml" else []), "model.demo")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"{message}\n")


def test_settings_are_refused_before_the_first_task_has_done_anything(chain: Inv) -> None:
    ended = chain("looks", env={"INVOKE_BENCH_SEED": "x"})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("environment INVOKE_BENCH_SEED: ")
    assert ended.stderr.count("\n") == 1


def test_a_variable_only_invoke_cannot_use_is_one_line_too(project: Path, chain: Inv) -> None:
    (project / "invoke.yaml").write_text(
        (project / "invoke.yaml").read_text().replace("lost_after_sec: 60.0", "lost_after_sec: 60")
    )
    ended = chain("looks", env={"INVOKE_FLEET_LOST_AFTER_SEC": "60.5"})
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "INVOKE_FLEET_LOST_AFTER_SEC" in ended.stderr


def test_after_some_trials_failed_the_chain_goes_on_and_ends_with_1(chain: Inv) -> None:
    ended = chain("fails-some", "looks")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "looks\n", "2 of 8 trials failed\n")


def test_any_other_failure_stops_the_chain_at_once(chain: Inv) -> None:
    ended = chain("fails-some", "refuses", "looks")
    assert (ended.returncode, ended.stdout) == (4, "")
    assert ended.stderr == "2 of 8 trials failed\nnot safe:\\nsecond line\n"


def test_a_task_asked_for_twice_runs_once_as_invoke_promises(chain: Inv) -> None:
    assert chain("looks", "looks").stdout == "looks\n"
    assert chain("--no-dedupe", "looks", "looks").stdout == "looks\nlooks\n"


@pytest.mark.usefixtures("chain")
def test_ctrl_c_exits_with_130(project: Path) -> None:
    running = subprocess.Popen((str(INV), "waits"), cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline() == b"waiting\n"
    running.send_signal(signal.SIGINT)
    _, complaint = running.communicate(timeout=30)
    assert (running.returncode, complaint) == (130, b"interrupted\n")


def test_inv_works_from_a_subfolder(project: Path, inv: Inv) -> None:
    below = project / "a" / "b c"
    below.mkdir(parents=True)
    assert inv("--list", cwd=below).stdout == inv("--list").stdout != ""


def test_a_task_module_does_not_shadow_the_package_it_is_named_after(project: Path, inv: Inv) -> None:
    (project / "tasks" / "docker.py").write_text("raise RuntimeError('this is not the SDK')\n")
    sdk = project.parent / "site"
    sdk.mkdir()
    (sdk / "docker.py").write_text("WHO = 'the SDK'\n")
    with (project / "tasks" / "__init__.py").open("a") as file:
        file.write("\nimport docker\n\nassert docker.WHO == 'the SDK'\n")
    ended = inv("--list", env={"PYTHONPATH": str(sdk)})
    assert (ended.returncode, ended.stderr) == (0, "")
    (project / "tasks.py").unlink()  # and without the shim it would
    assert "this is not the SDK" in inv("--list", env={"PYTHONPATH": str(sdk)}).stderr


def test_listing_tasks_imports_nothing_heavy(project: Path) -> None:
    script = (
        "import sys, tasks; heavy = {'pydantic', 'rich', 'pandas', 'torch', 'matplotlib'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    python = INV.with_name("python")
    ended = subprocess.run((python, "-c", script), cwd=project, capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
