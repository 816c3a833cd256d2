"""Every command of docs/tutorials/machine.md, typed on a laptop and over SSH on another machine.

OpenSSH's client and server and rsync are real. The machine has no GPU; its trials and its training compute nothing, and
`python -m bench` is forked. Not covered: the installation, blocks `by-hand`.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import TUTORIALS, typed_script
from tests.support.forked import ForkServer, install_forked_bench
from tests.support.hosts.fake_worker_finetune import install_fake_finetune
from tests.support.machines.machine import require
from tests.support.machines.network import VM, Network
from tests.support.machines.sshd import Sshd
from tests.system.conftest import Project
from tests.system.tutorials.conftest import SMALL, complete_project, install

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RENTER = "renter"  # with root's number, because the Python that runs the tests may lie in root's home
PAGE = TUTORIALS / "machine.md"


class Laptop:
    """The laptop, in the project's folder."""

    def __init__(self, network: Network, project: Project) -> None:
        self.network, self.project = network, project

    def type(self, script: str, *, on: str | None = None) -> str:
        """Run a script in a shell, here or by a login `on` another machine; assert that it succeeds."""
        argv: tuple[str, ...] = ("bash", "-c", script)
        if on is not None:
            argv = ("ssh", on, shlex.join(argv))
        environment = self.project.environment | {"PYTHONPATH": str(self.project.folder)}
        done: Any = self.network.laptop.run(*argv, cwd=self.project.folder, env=environment, timeout=500, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return str(done.stdout)


@pytest.fixture
def laptop(
    module_network: Network, bare_project: Project, tiny_model: Path, tiny_data: Path, bench_server: ForkServer
) -> Iterator[Laptop]:
    """Provide a laptop with a model and data, and a machine on which everything is installed."""
    require("ssh", "rsync", "make")
    vm, home = module_network.vm, module_network.vm.home(RENTER)
    vm.add_user(RENTER, uid=0)
    server = Sshd(module_network.folder / "gpu-sshd", machine=vm, address=VM, port=2200, users=(RENTER,))
    complete_project(bare_project.folder)
    install_fake_finetune(bare_project.folder)
    install_forked_bench(bare_project.folder, bench_server)
    for name, target in (("models/my-model", tiny_model), ("data/my.jsonl", tiny_data)):
        path = bare_project.folder / name
        path.parent.mkdir()
        path.symlink_to(target)
    install(home / "qlora-fleet")
    with server:
        server.authorize(module_network.key)
        module_network.write_config(f"Host gpu-box\n HostName {VM}\n Port 2200\n User {RENTER}")
        module_network.known_hosts.write_text(server.known_hosts_line(VM))
        yield Laptop(module_network, bare_project)


def test_every_command_of_the_page_succeeds(laptop: Laptop) -> None:
    first, last = "2. Send the project, your model and data", "6. Fetch the results, and give the machine back"
    laptop.type(typed_script(PAGE, first))
    home = laptop.network.vm.home(RENTER)
    assert not (home / "qlora-fleet" / "models" / "my-model").is_symlink()
    few = dict.fromkeys(("INVOKE_BENCH_WARMUP_STEPS", "INVOKE_BENCH_MEASURED_STEPS", "INVOKE_BENCH_REPEATS"), "1")
    small = SMALL | few | {"INVOKE_BENCH_PROFILE": "tiny", "PYTHONPATH": str(home / "qlora-fleet")}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in small.items())
    script = typed_script(PAGE, on="machine")
    # The doctor may find that the tests' environment differs from constraints.txt.
    script = script.replace("\ninv doctor\n", "\ninv doctor || [ $? = 1 ]\n")
    output = laptop.type(exports + script, on="gpu-box")
    assert output.count("$ inv") == script.count("'$ inv")
    laptop.type(typed_script(PAGE, last))
    assert (laptop.project.run_folder() / "adapter" / "adapter_model.safetensors").exists()
