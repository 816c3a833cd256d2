"""The real `inv`, as a process: what is seen when settings are wrong, and how a chain of tasks ends."""

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
run = partial(subprocess.run, timeout=60, check=False)  # where `inv`'s start or its streams are what is tested

Inv = Callable[..., "subprocess.CompletedProcess[str]"]

EXTRA_TASKS = """
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
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


@task
def shares(context):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(pool.submit(abs, -1).result())


@task
def hears(context):
    print(ascii(sys.stdin.readline()))


for extra in (looks, fails_some, refuses, waits, shares, hears):
    ns.add_task(extra)
"""


@pytest.fixture
def chain(project: Path, inv: Inv) -> Inv:
    """`inv` with more tasks, which end in the ways a task can."""
    with (project / "tasks" / "__init__.py").open("a") as file:
        file.write(EXTRA_TASKS)
    return inv


def test_the_installed_program_is_the_one_of_these_sources() -> None:
    source = (ROOT / "tasks" / "cli" / "inv").read_text()
    assert INV.read_text().splitlines()[1:] == source.splitlines()[1:], "type `touch tasks/cli/inv && make install`"


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fleet:\n\tsize: 3\n", ".invoke.yaml:2: not YAML: found character '\\t' that cannot start any token"),
        ("[a, b]", ".invoke.yaml:1: expected sections such as `fleet:`, found a list"),
        ("hello", '.invoke.yaml:1: expected sections such as `fleet:`, found "hello"'),
        ("a: 1\n---\nb: 2\n", ".invoke.yaml:2: not YAML: a second document"),
        ("run: 3", ".invoke.yaml:1: run: expected a section, found 3"),
        ("fleet: 3", ".invoke.yaml:1: fleet: expected a section with kind, size, "),
        ("a: &a {b: *a}", ".invoke.yaml: not YAML that can be used: more than 10,000 values"),
        ("a: b\n" * 100_000, ".invoke.yaml: cannot be read: it is larger than 131,072 bytes"),
    ],
)
def test_the_users_own_file_which_is_read_before_the_project_is_known_is_explained_too(
    text: str, message: str, project: Path, inv: Inv
) -> None:
    (project.parent / "home" / ".invoke.yaml").write_text(text)
    ended = inv("--list")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith(f"~/{message}")


def test_a_users_file_that_is_no_file_is_not_waited_for(project: Path, inv: Inv) -> None:
    own = project.parent / "home" / ".invoke.yaml"
    os.mkfifo(own)
    assert inv("--list").stderr == "~/.invoke.yaml: cannot be read: it is a pipe, not a file\n"
    own.unlink()
    own.mkdir()
    assert inv("--list").stderr == "~/.invoke.yaml: cannot be read: it is a folder, not a file\n"
    own.rmdir()
    (own.with_suffix(".py")).write_text("1 / 0")
    assert inv("--list").stderr == "~/.invoke.py: cannot be run: ZeroDivisionError: division by zero\n"


def test_a_folder_that_is_gone_is_named(project: Path) -> None:
    gone = project / "gone"
    gone.mkdir()
    code = f"import os, sys; os.rmdir(os.getcwd()); os.execv({str(INV)!r}, ['inv', '--list'])"
    ended = run((sys.executable, "-c", code), cwd=gone, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (2, "the folder you are in is no more; `cd` to one that is there\n")


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


@pytest.mark.usefixtures("chain")
def test_a_process_that_a_task_starts_does_not_type_the_command_again(project: Path) -> None:
    ended = run((str(INV), "shares"), cwd=project, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")


STRIKES = """
import os, signal
{before}
os.kill(os.getpid(), signal.SIGINT)
print("went on", flush=True)
"""


@pytest.mark.parametrize(("before", "ends"), [("", (130, "")), ("signal.signal(2, signal.SIG_IGN)", (0, "went on\n"))])
def test_ctrl_c_while_modules_are_read_ends_without_a_word_but_where_it_was_ignored_from_the_start(
    before: str, ends: tuple[int, str], project: Path, inv: Inv
) -> None:
    (project / "tasks.py").write_text(STRIKES.format(before=before) + (project / "tasks.py").read_text())
    ended = inv("--list")
    assert (ended.returncode, ended.stdout[:8], ended.stderr) == (*ends, "")


def test_output_that_nobody_reads_ends_it_as_sigpipe_would(project: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = run((str(INV), "--list"), cwd=project, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_output_that_cannot_be_written_is_one_line_and_exit_3(project: Path) -> None:
    with Path("/dev/full").open("w") as full:
        listed = run((str(INV), "--list"), cwd=project, stdout=full, stderr=subprocess.PIPE)
        mistyped = run((str(INV), "benhc"), cwd=project, stderr=full)
    said = b"standard output cannot be written: No space left on device; repair that, then type the same again\n"
    assert (listed.returncode, listed.stderr) == (3, said)
    assert mistyped.returncode == 2, "where nobody can be told, the exit code still says it"


def test_closed_standard_streams_are_no_error(project: Path) -> None:
    closed = f"import os; os.closerange(0, 3); os.execv({str(INV)!r}, ['inv', '--list'])"
    assert run((sys.executable, "-c", closed), cwd=project).returncode == 0


@pytest.mark.parametrize(("words", "heard"), [("printf 'a\\377\\n' | ", r"'a\udcff\n'"), ("exec <&-; ", "''")])
def test_standard_input_may_be_no_text_or_closed(words: str, heard: str, project: Path, chain: Inv) -> None:
    del chain  # which adds the task
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = run(["sh", "-c", f"{words}{INV} hears"], cwd=project, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{heard}\n", "")


def test_inv_works_from_a_subfolder(project: Path, inv: Inv) -> None:
    below = project / "a" / "b c"
    below.mkdir(parents=True)
    assert inv("--list", cwd=below).stdout == inv("--list").stdout != ""


def test_a_task_module_does_not_shadow_the_package_it_is_named_after(project: Path) -> None:
    (project / "tasks" / "docker.py").write_text("raise RuntimeError('this is not the SDK')\n")
    sdk = project.parent / "site"
    sdk.mkdir()
    (sdk / "docker.py").write_text("WHO = 'the SDK'\n")
    with (project / "tasks" / "__init__.py").open("a") as file:
        file.write("\nimport docker\n\nassert docker.WHO == 'the SDK'\n")
    environment = {**os.environ, "PYTHONPATH": str(sdk)}
    listed = partial(run, (str(INV), "--list"), cwd=project, env=environment, capture_output=True, text=True)
    ended = listed()
    assert (ended.returncode, ended.stderr) == (0, "")
    (project / "tasks.py").unlink()  # and without the shim it would
    assert "this is not the SDK" in listed().stderr


def test_listing_tasks_imports_nothing_heavy(project: Path) -> None:
    script = (
        "import sys, tasks; heavy = {'pydantic', 'rich', 'pandas', 'torch', 'matplotlib'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    python = INV.with_name("python")
    ended = subprocess.run((python, "-c", script), cwd=project, capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
