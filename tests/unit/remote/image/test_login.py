"""Causes of a failed login: rejected by the registry; engine not accessible, down, or not Docker's."""

import pytest

from remote.hosts.command import Command, Secret
from remote.hosts.host import Completed, HostError, HostUnreachable, LoginRefused
from remote.image import registry
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
        registry.log_in(vm, Client(), "fra.ocir.io", "ns/me", Secret("token"))
    assert vm.commands[-1] == ("rm", "-rf", "--", "/dev/shm/qlora-fleet-login-x")


class Podman(Vm):
    """A host with podman, which the package podman-docker installs as `docker`."""

    def run(self, *_: object, **_options: object) -> Completed:
        return Completed(exit_code=0, stdout=self.complaint.encode())


@pytest.mark.parametrize("version", ['{"Client": {"Version": "4.9.4-rhel"}}', '{"Client": {}, "Server": null}'])
def test_an_engine_that_is_not_dockers_is_reported(version: str) -> None:
    with pytest.raises(EngineError, match=r"^vm: docker .*podman.*; .*image\.client"):
        observe(Podman(version), Client())
