"""Every command of docs/tutorials/laptop.md, typed in a shell, in a copy of the project.

The benchmark computes nothing, the real model is the demo's small one under its name, trained for two steps, and
`inv` and `python` are forked, but for `make demo`. `THOROUGH=1` computes everything as the page says. Not
covered: the installation, blocks `by-hand`.
"""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.documents import TUTORIALS, typed_script
from tests.support.thorough import THOROUGH
from tests.system.conftest import Project
from tests.system.tutorials.conftest import SMALL, complete_project, install, put_models

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if THOROUGH else 900)]


def test_every_command_of_the_page_succeeds(
    bare_project: Project, tiny_model: Path, demo_data: Path, bench_server: forked.ForkServer
) -> None:
    folder = bare_project.folder
    complete_project(folder, is_small=not THOROUGH)
    install(folder)
    environment = bare_project.environment | {"PYTHONPATH": str(folder)}
    script = typed_script(TUTORIALS / "laptop.md")
    if not THOROUGH:
        # Answers of a model after two steps end by chance, and a merge after which fewer end is refused.
        script = script.replace("adapter.merge --base=nf4", "adapter.merge --base=nf4 --force")
        put_models(folder, tiny_model, demo_data)
        forked.install_forked_bench(folder, bench_server)
        inv = forked.install_forked_inv(folder / "bin", bare_project.server)
        run_file = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
        python = forked.install_forked(folder / "bin" / "python", bench_server, run_file)
        for name, program in (("inv", inv), ("python", python)):
            script = f'{name}() {{ {shlex.quote(str(program))} "$@"; }}\n{script}'
        environment |= SMALL
    typed = folder.parent / "typed.sh"
    typed.write_text(script)
    done = subprocess.run(
        ("bash", str(typed)), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (folder / "results" / "latest" / "merged" / "SHA256SUMS").exists()
