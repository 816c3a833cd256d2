"""One command, on this machine and over SSH: how it ended, what it said, and that nothing of a broken one stays."""

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.hosts import process
from remote.hosts.command import Command
from remote.hosts.host import CommandTimedOut, Completed, Host, TooMuchOutput
from remote.hosts.local import LocalHost
from tests.support.hosts.local_fleet import PATIENCE_SEC, LocalFleet, processes_under, wait_for
from tests.support.hosts.stand_in import StandIn
from tests.support.machines.ssh_client import local_or_ssh


@pytest.fixture(params=["local", "ssh"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalFleet]:
    with local_or_ssh(request, tmp_path) as local:
        yield local


@pytest.fixture
def host(local: LocalFleet) -> Host:
    return local.host()


@pytest.fixture(params=["local", "ssh", "pod"])
def any_host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A pod too, for what the others have in common with it; test_pod_host.py has the rest."""
    if request.param == "pod":
        monkeypatch.setenv("STAND_IN_FOLDER", str(tmp_path))
        with LocalFleet(tmp_path):  # and whatever a command left behind is an error
            yield StandIn(tmp_path).host
        return
    with local_or_ssh(request, tmp_path) as local:
        yield local.host()


def run(host: Host, *argv: str, folder: Path | None = None, **options: object) -> Completed:
    options.setdefault("timeout_sec", PATIENCE_SEC)
    return host.run(Command(argv=argv, folder=None if folder is None else str(folder)), **options)  # type: ignore[arg-type]


def script(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", text)


@pytest.mark.parametrize(
    ("text", "exit_code"),
    [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)],
)
def test_the_exit_code_is_the_commands_own_and_signals_count_from_128(
    any_host: Host, text: str, exit_code: int
) -> None:
    assert run(any_host, "sh", "-c", text).exit_code == exit_code


def test_both_streams_come_back_apart(any_host: Host) -> None:
    completed = run(any_host, "sh", "-c", "echo out; echo err >&2")
    assert (completed.stdout, completed.stderr) == (b"out\n", b"err\n")


def test_megabytes_go_both_ways_at_once(any_host: Host) -> None:
    content = os.urandom(5 << 20)
    assert run(any_host, "cat", stdin=content).stdout == content
    assert run(any_host, "cat", stdin=io.BytesIO(content)).stdout == content


def test_pieces_reach_the_sink_in_order_in_the_calling_thread(any_host: Host) -> None:
    content, heard, threads = os.urandom(1 << 20), bytearray(), set()

    def hear(piece: bytes) -> None:
        heard.extend(piece)
        threads.add(threading.get_ident())

    completed = run(any_host, "cat", stdin=content, on_stdout=hear)
    assert (bytes(heard), completed.stdout) == (content, b"")
    assert threads == {threading.get_ident()}


def test_a_program_that_never_reads_its_input_does_not_hang_us(any_host: Host) -> None:
    assert run(any_host, "sh", "-c", "exit 3", stdin=b"x" * (8 << 20)).exit_code == 3
    assert run(any_host, *script("import os; os.close(0); print('done')"), stdin=b"x" * (8 << 20)).stdout == b"done\n"


def test_without_input_a_program_reads_its_end_at_once(any_host: Host) -> None:
    assert run(any_host, "cat").stdout == b""
    assert run(any_host, "cat", stdin=b"").stdout == b""


def test_a_command_that_is_not_there_ends_with_127_and_the_reason(any_host: Host) -> None:
    completed = run(any_host, "/no/such/program", stdin=b"x" * 100_000)
    assert completed.exit_code == 127
    assert b"/no/such/program" in completed.stderr
    assert completed.stderr.rstrip().endswith(b": No such file or directory")


def test_a_folder_that_is_not_there_ends_with_127_and_names_the_folder(any_host: Host, tmp_path: Path) -> None:
    completed = run(any_host, "true", folder=tmp_path / "absent")
    assert completed.exit_code == 127
    assert completed.stderr == f"{tmp_path}/absent: No such file or directory".encode()


def test_a_file_that_is_no_program_ends_with_127(host: Host, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "text").chmod(0o755)
    assert run(host, str(tmp_path / "text")).exit_code == 127


def test_folder_and_environment_are_the_commands(host: Host, tmp_path: Path) -> None:
    folder = tmp_path / "it's a $HOME"
    folder.mkdir()
    environment = {"GREETING": "it's\n`me` $HOME", "n": "", "PATH": f"/no/such:{os.environ['PATH']}"}
    command = Command(argv=("sh", "-c", 'pwd; echo "$GREETING"'), environment=environment, folder=str(folder))
    completed = host.run(command, timeout_sec=PATIENCE_SEC)
    assert completed.stdout.decode().splitlines() == [str(folder), "it's", "`me` $HOME"]


def test_a_local_command_inherits_the_rest_of_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "yes")
    host = LocalHost(name="worker-1", workdir=str(tmp_path))
    assert run(host, "sh", "-c", 'echo "$INHERITED"', folder=tmp_path).stdout == b"yes\n"


ODD_WORDS = [
    *(
        "",
        " ",
        "a b",
        "it's",
        '"',
        "$HOME",
        "`id`",
        "\\",
        "\\n",
        "!!",
        "*",
        "~",
        "-n",
        "--",
        "a\nb",
        "\n",
        "tab\t",
        "ü日本",
    ),
    *("not-utf8-\udcff", "\udc81\udc88", "%s", "x" * 100_000),
]


@pytest.mark.parametrize("word", ODD_WORDS, ids=lambda word: ascii(word[:12]))
def test_every_word_of_argv_arrives_as_it_is(host: Host, word: str) -> None:
    said = run(
        host, *script("import os, sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))"), word, "z"
    )
    assert said.stdout == os.fsencode(word) + b"|z"


# --- broken off -------------------------------------------------------------------------------------------------------

# Says it is up, then stays, deaf to a polite end, with a child in its group that is deaf too.
STAYS = "trap '' TERM; (trap '' TERM; sleep 300) & echo up; sleep 300 & wait; sleep 300"


def test_a_command_is_ended_at_its_deadline_with_everything_it_started(host: Host, tmp_path: Path) -> None:
    with pytest.raises(CommandTimedOut, match=r"not done after 0\.3 s"):
        run(host, "sh", "-c", STAYS, folder=tmp_path, timeout_sec=0.3)
    wait_for(lambda: not processes_under(tmp_path), "the end of all of it")


def test_a_child_deaf_to_the_polite_end_goes_with_its_parent(host: Host, tmp_path: Path) -> None:
    with pytest.raises(CommandTimedOut):
        run(host, "sh", "-c", "(trap '' TERM; sleep 300) & sleep 300", folder=tmp_path, timeout_sec=0.3)
    wait_for(lambda: not processes_under(tmp_path), "the end of all of it")


def test_silence_ends_a_command_and_speech_does_not(host: Host, tmp_path: Path) -> None:
    with pytest.raises(CommandTimedOut, match=r"silent for 0\.3 s"):
        run(host, "sh", "-c", "echo up; sleep 300", folder=tmp_path, idle_timeout_sec=0.3)
    wait_for(lambda: not processes_under(tmp_path), "its end")
    talk = script("import time\nfor _ in range(40): print('x', flush=True); time.sleep(0.05)")
    assert len(run(host, *talk, idle_timeout_sec=1.5).stdout) == 80


def test_a_reader_that_takes_its_time_does_not_make_a_command_silent(host: Host) -> None:
    heard: list[bytes] = []

    def hear(piece: bytes) -> None:
        heard.append(piece)
        time.sleep(0.8 if len(heard) == 1 else 0.0)

    run(host, "sh", "-c", "echo one; sleep 0.1; echo two", on_stdout=hear, idle_timeout_sec=0.6)
    assert b"".join(heard) == b"one\ntwo\n"


def test_a_program_that_closes_its_output_and_stays_is_still_bounded(host: Host, tmp_path: Path) -> None:
    text = "import os, time; os.close(1); os.close(2); time.sleep(300)"
    with pytest.raises(CommandTimedOut):
        run(host, *script(text), folder=tmp_path, timeout_sec=0.5)
    wait_for(lambda: not processes_under(tmp_path), "its end")


@pytest.mark.parametrize(
    "error", [KeyError("enough"), FileNotFoundError(2, "gone"), PermissionError(1, "no"), KeyboardInterrupt()]
)
def test_what_the_sink_raises_comes_through_and_ends_the_command(
    host: Host, tmp_path: Path, error: BaseException
) -> None:
    def hear(_: bytes) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        run(host, "sh", "-c", "echo up; sleep 300", folder=tmp_path, on_stdout=hear)
    assert raised.value is error
    wait_for(lambda: not processes_under(tmp_path), "its end")


@pytest.mark.parametrize("to", ["", ">&2"])
def test_output_without_end_is_ended_at_a_limit_that_is_named(
    host: Host, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MOST_KEPT_BYTES", 1 << 20)
    with pytest.raises(TooMuchOutput, match=r"yes.*printed more than 1 MiB; it was ended"):
        run(host, "sh", "-c", f"exec yes {to}", folder=tmp_path)
    wait_for(lambda: not processes_under(tmp_path), "its end")


@pytest.mark.parametrize("then", ["exec cat", "exec sleep 300", "exec sleep 300 >&- 2>&-"])
def test_what_the_input_raises_comes_through_and_ends_the_command(host: Host, tmp_path: Path, then: str) -> None:
    class Broken:
        def read(self, _: int, /) -> bytes:
            wait_for((tmp_path / "begun").exists, "the command has begun")
            raise FileNotFoundError(2, "gone")

    with pytest.raises(FileNotFoundError):
        run(host, "sh", "-c", f"touch begun; {then}", folder=tmp_path, stdin=Broken())
    wait_for(lambda: not processes_under(tmp_path), "its end")


OPERATOR = """
import sys
from remote.hosts.command import Command
from remote.hosts.local import LocalHost
command = Command(argv=("sh", "-c", "touch begun; exec sleep 300"), folder=sys.argv[1])
LocalHost(name="worker-1", workdir=sys.argv[1]).run(command, timeout_sec=300.0)
"""


def test_a_command_on_this_machine_ends_with_an_operator_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen((sys.executable, "-c", OPERATOR, str(tmp_path))) as operator:
        wait_for((tmp_path / "begun").exists, "the command has begun")
        operator.kill()
    wait_for(lambda: not processes_under(tmp_path), "its end")


def test_a_ctrl_c_at_the_terminal_is_not_passed_on(host: Host) -> None:
    said = run(host, *script("import os; print(os.getsid(0))"))
    assert int(said.stdout) != os.getsid(0)


def test_a_local_host_is_a_host(tmp_path: Path) -> None:
    host: Host = LocalHost(name="worker-1", workdir=str(tmp_path))
    assert (host.name, host.workdir, host.python) == ("worker-1", str(tmp_path), (sys.executable,))
