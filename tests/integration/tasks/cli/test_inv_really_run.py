"""Tests of `inv` as a process: output for wrong settings, and exit codes of a chain of tasks."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.paths import ROOT

INV = Path(sys.executable).with_name("inv")
run = partial(subprocess.run, timeout=60, check=False)  # for tests of the start or the streams of `inv`

Inv = Callable[..., "subprocess.CompletedProcess[str]"]

EXTRA_TASKS = """
import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from invoke.tasks import task
from tasks.errors import ConfirmationRequired, SomeTrialsFailed


@task
def prints(context):
    print("printed")


@task
def fails_some(context):
    raise SomeTrialsFailed("2 of 8 trials failed")


@task
def refuses(context):
    raise ConfirmationRequired("not safe:\\nsecond line")


@task
def waits(context):
    print("waiting", flush=True)
    time.sleep(60)


@task
def spawns(context):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(pool.submit(abs, -1).result())


@task
def reads(context):
    print(ascii(sys.stdin.readline()))


@task
def echoes(context):
    print(sys.stdin.readline(), end="", flush=True)
    subprocess.run([sys.executable, "-c", r"print('\\u2713')"], check=True)


for extra in (prints, fails_some, refuses, waits, spawns, reads, echoes):
    ns.add_task(extra)
"""


@pytest.fixture
def chain(project: Path, inv: Inv) -> Inv:
    """Return `inv` with more tasks, one for each way to end."""
    add_to_tasks(project, EXTRA_TASKS)
    return inv


def add_to_tasks(project: Path, code: str) -> None:
    module = project / "tasks" / "__init__.py"
    text = module.read_text()
    module.unlink()  # a hard link to the module of other copies
    module.write_text(text + code)


def test_the_installed_program_is_up_to_date() -> None:
    source = (ROOT / "tasks" / "cli" / "inv").read_text()
    assert INV.read_text().splitlines()[1:] == source.splitlines()[1:], "type `touch tasks/cli/inv && make install`"


def test_a_settings_file_that_is_too_long_is_one_line_and_what_reads_none_still_works(project: Path, inv: Inv) -> None:
    (project.parent / "home" / ".invoke.yaml").write_text("a: b\n" * 100_000)
    completed = inv("model.demo")
    assert (completed.returncode, completed.stdout, completed.stderr.count("\n")) == (2, "", 1)
    assert completed.stderr.startswith("~/.invoke.yaml: ")
    assert inv("--list").returncode == 0


def test_a_deleted_current_directory_is_one_line(project: Path) -> None:
    deleted = project / "deleted"
    deleted.mkdir()
    code = f"import os, sys; os.rmdir(os.getcwd()); os.execv({str(INV)!r}, ['inv', '--list'])"
    completed = run((sys.executable, "-c", code), cwd=deleted, capture_output=True, text=True)
    *of_the_shell, line = completed.stderr.splitlines()  # the shell that starts it may have a line of its own
    assert (completed.returncode, len(of_the_shell) <= 1) == (2, True)
    assert "`cd`" in line


def test_settings_are_refused_before_the_first_task_has_done_anything(chain: Inv) -> None:
    completed = chain("prints", env={"INVOKE_BENCH_SEED": "x"})
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr.startswith("environment INVOKE_BENCH_SEED: ")
    assert completed.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("tasks", "code", "stdout", "stderr"),
    [
        (("fails-some", "prints"), 1, "printed\n", "2 of 8 trials failed\n"),
        (("fails-some", "refuses", "prints"), 4, "", "2 of 8 trials failed\nnot safe:\\nsecond line\n"),
        (("--no-dedupe", "prints", "prints"), 0, "printed\nprinted\n", ""),
    ],
)
def test_a_chain_stops_at_a_failure_but_that_of_some_trials(
    tasks: tuple[str, ...], code: int, stdout: str, stderr: str, chain: Inv
) -> None:
    completed = chain(*tasks)
    assert (completed.returncode, completed.stdout, completed.stderr) == (code, stdout, stderr)


@pytest.mark.usefixtures("chain")
def test_ctrl_c_exits_with_130(project: Path) -> None:
    running = subprocess.Popen((str(INV), "waits"), cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline() == b"waiting\n"
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=30)
    assert (running.returncode, stderr) == (130, b"interrupted\n")


SEND_SIGINT = """
import os, signal
{before}
os.kill(os.getpid(), signal.SIGINT)
print("continued", flush=True)
"""


@pytest.mark.parametrize(
    ("before", "outcome"), [("", (130, "")), ("signal.signal(2, signal.SIG_IGN)", (0, "continued\n"))]
)
def test_ctrl_c_during_imports_ends_silently_unless_it_was_ignored_from_the_start(
    before: str, outcome: tuple[int, str], project: Path, inv: Inv
) -> None:
    (project / "tasks.py").write_text(SEND_SIGINT.format(before=before) + (project / "tasks.py").read_text())
    completed = inv("--list")
    assert (completed.returncode, completed.stdout[:10], completed.stderr) == (*outcome, "")


def test_a_closed_pipe_at_standard_output_exits_like_sigpipe(project: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        completed = run((str(INV), "--version"), cwd=project, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (completed.returncode, completed.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("line", "code", "stdout", "error"),
    [
        ("inv --version > /dev/full", 3, "", "No space left on device"),
        ("inv benhc 2> /dev/full", 2, "", ""),
        ("inv --version <&- >&- 2>&-", 0, "", ""),
        ("printf 'a\\377\\n' | inv reads", 0, "'a\\udcff\\n'\n", ""),
        ("inv reads <&-", 0, "''\n", ""),
        ("inv spawns", 0, "1\n", ""),
    ],
)
@pytest.mark.usefixtures("chain")
def test_standard_streams_may_be_full_closed_or_binary(
    line: str, code: int, stdout: str, error: str, project: Path
) -> None:
    environment = {**os.environ, "PATH": f"{INV.parent}:{os.environ['PATH']}", "PYTHONIOENCODING": "utf-8:strict"}
    done = run(["sh", "-c", line], cwd=project, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, stdout, len(error) > 0)
    assert error in done.stderr


def test_inv_and_its_programs_read_and_write_utf8_in_every_locale(project: Path, chain: Inv) -> None:
    del chain  # it adds the task
    question = "\ufeffGröße 😀?\n".encode()
    locale = {"PYTHONIOENCODING": "latin-1", "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run([str(INV), "echoes"], cwd=project, env={**os.environ, **locale}, input=question, capture_output=True)
    assert (done.stdout.decode(), done.stderr.decode()) == ("Größe 😀?\n✓\n", "")


def test_a_task_module_does_not_shadow_the_package_it_is_named_after(project: Path) -> None:
    (project / "tasks" / "docker.py").write_text("raise RuntimeError('this is not the SDK')\n")
    sdk = project.parent / "site"
    sdk.mkdir()
    (sdk / "docker.py").write_text("WHO = 'the SDK'\n")
    add_to_tasks(project, "\nimport docker\n\nassert docker.WHO == 'the SDK'\n")
    environment = {**os.environ, "PYTHONPATH": str(sdk)}
    completed = run((str(INV), "--list"), cwd=project, env=environment, capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (0, "")


def test_listing_tasks_imports_nothing_heavy(project: Path) -> None:
    script = (
        "import sys, tasks; heavy = {'pydantic', 'rich', 'pandas', 'torch', 'matplotlib'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    python = INV.with_name("python")
    completed = subprocess.run((python, "-c", script), cwd=project, capture_output=True, text=True, check=True)
    assert completed.stdout == "[]\n"
