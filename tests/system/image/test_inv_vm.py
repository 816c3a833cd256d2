"""`inv vm.check` on the laptop: its output, and the exit code of each connection failure."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.machines.network import Network
from tests.support.paths import ROOT


def check(network: Network, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("INVOKE_")}
    settings = {"HOME": str(network.folder), "INVOKE_BUILD_HOST": "vm", **environment}
    done: subprocess.CompletedProcess[str] = network.laptop.run(
        *(sys.executable, "-m", "invoke", "vm.check", *flags), check=False, cwd=ROOT, env={**inherited, **settings}
    )
    assert "Traceback" not in done.stderr
    return done


def test_the_vm_is_described(module_network: Network) -> None:
    before = module_network.vm_sshd.logins()
    done = check(module_network, "--tmpdir", "/mnt")
    assert done.returncode == 0, done.stderr
    assert "user ubuntu in ubuntu; home" in done.stdout
    assert "free on tmpfs" in done.stdout
    assert module_network.vm_sshd.logins() == before + 1


def clear_known_hosts(network: Network) -> None:
    network.known_hosts.write_text("")


def change_host_key(network: Network) -> None:
    network.vm_sshd.replace_host_key()


@pytest.mark.parametrize(
    ("prepare", "environment", "exit_code", "token"),
    [
        (clear_known_hosts, {}, 4, "unknown"),
        (change_host_key, {}, 4, "changed"),
        (lambda _: None, {"INVOKE_BUILD_USER": "nosuchuser"}, 2, "'nosuchuser'"),
        (lambda _: None, {"INVOKE_BUILD_HOST": "-oProxyCommand=x"}, 2, "build.host: '-oProxyCommand=x'"),
        (lambda _: None, {"INVOKE_BUILD_HOST": "no-such-host"}, 2, "no-such-host"),
        (lambda _: None, {"INVOKE_BUILD_PORT": "9"}, 3, "port 9"),
    ],
    ids=["unknown key", "changed key", "wrong user", "an option for a host", "unknown host", "wrong port"],
)
def test_each_connection_failure_is_one_line_with_its_exit_code(
    module_network: Network, prepare: Callable[[Network], None], environment: dict[str, str], exit_code: int, token: str
) -> None:
    module_network.write_known_hosts()
    prepare(module_network)
    done = check(module_network, **environment)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert token in done.stderr
    assert len(done.stderr.splitlines()) == 1
