"""Causes of a failed login: rejected by the registry; engine not accessible, down, or not Docker's."""

import errno
import os
import sys
from pathlib import Path

import pytest

from remote.agent.scripts import login
from remote.hosts.base import Completed, HostError, HostUnreachable, LoginRefused
from remote.hosts.command import Command, Secret
from remote.image import engine
from remote.image.engine import Client, EngineError, observe


class Vm:
    """A host whose engine client fails a login with `complaint`; every other command works."""

    name, workdir, python = "vm", "/home/me/.qlora-fleet", ("python3",)

    def __init__(self, complaint: str) -> None:
        self.complaint, self.commands = complaint, list[tuple[str, ...]]()

    def run(self, command: Command, **_: object) -> Completed:
        self.commands.append(command.argv)
        if "login" in command.argv:
            return Completed(exit_code=1, stderr=self.complaint.encode())
        return Completed(exit_code=0, stdout=b"/dev/shm/qlora-fleet-login-x\n")


@pytest.mark.parametrize(("complaint", "error_class", "token"), [
    ("Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: "
     'Post "http://%2Fvar%2Frun%2Fdocker.sock/v1.24/auth": dial unix: connect: permission denied',
     EngineError, r"^vm: .*; .*sudo usermod -aG docker \$USER"),
    ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
     EngineError, "; .*sudo systemctl start docker"),
    ("Error response from daemon: Get https://fra.ocir.io/v2/: unauthorized: incorrect username or password",
     LoginRefused, r"^fra\.ocir\.io .*ns/me: .*; .*NAMESPACE/USER"),
    ('Error response from daemon: Get "https://fra.ocir.io/v2/": dial tcp: connection refused',
     HostUnreachable, r"^vm: .*fra\.ocir\.io.*: "),
])  # fmt: skip
def test_each_cause_of_a_failed_login_has_its_error_and_remedy(
    complaint: str, error_class: type[HostError], token: str
) -> None:
    vm = Vm(complaint)
    with pytest.raises(error_class, match=token):
        engine.log_in(vm, Client(), "fra.ocir.io", "ns/me", Secret("token"), deadline_sec=1.0)
    assert vm.commands[-1] == ("rm", "-rf", "--", "/dev/shm/qlora-fleet-login-x")


class Podman(Vm):
    """A host with podman, which the package podman-docker installs as `docker`."""

    def run(self, *_: object, **_options: object) -> Completed:
        return Completed(exit_code=0, stdout=self.complaint.encode())


@pytest.mark.parametrize("version", [
    '{"Client": {"Version": "4.9.4-rhel"}}', '{"Client": {}, "Server": null}',
    '{"Client": {}, "Server": {"Version": "28"}}', '{"Client": {"Version": "²0"}, "Server": {"Version": "28"}}',
])  # fmt: skip
def test_an_engine_that_is_not_dockers_is_reported(version: str) -> None:
    with pytest.raises(EngineError, match=r"^vm: docker .*podman.*; .*image\.client"):
        observe(Podman(version), Client())


@pytest.mark.parametrize("fault", ["no temporary folder", "the first folder is full"])
def test_a_full_disk_does_not_prevent_a_login_while_another_folder_has_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    def full(*_: object, **_options: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    folders = [tmp_path / "memory", tmp_path / "disk"]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setattr(sys, "argv", ["login", "login-", "60"])
    monkeypatch.setattr(login.tempfile, "gettempdir", full)
    missing = [str(tmp_path / "missing")] if fault == "the first folder is full" else []
    monkeypatch.setattr(login, "parent_folders", lambda: [*missing, *map(str, folders)])
    assert login.main() == 0
    created = Path(capsys.readouterr().out.strip())
    assert created.parent == folders[0]
    assert created.stat().st_mode & 0o777 == 0o700
    assert login.main() == 0  # the folder of another login stays
    assert len(list(folders[0].iterdir())) == 2
    os.utime(created, (0, 0))
    assert login.main() == 0  # removes the folder of the killed login
    assert len(list(folders[0].iterdir())) == 2
    assert not created.exists()


def test_a_login_without_any_folder_is_one_line_with_each_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "argv", ["login", "login-", "60"])
    monkeypatch.setattr(login, "parent_folders", lambda: [str(tmp_path), str(tmp_path / "missing")])
    monkeypatch.setattr(Path, "write_text", full)
    assert login.main() == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}: No space left on device" in line
    assert f"{tmp_path}/missing: No such file" in line
    assert list(tmp_path.iterdir()) == []
