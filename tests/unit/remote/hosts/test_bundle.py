"""What is delivered to hosts: every name points to a file, and every file runs there."""

import ast
import importlib
import re
import sys
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import pytest

from remote.hosts.bundle import program, source
from remote.image.vm_jobs import agent_on
from remote.jobs.agent import ONHOST
from remote.jobs.host_agent import install, util
from tests.support.hosts.local_fleet import LocalFleet

ROOT = Path(__file__).parents[4]
PROGRAM = (ONHOST, "remote.image.vm_agent", "remote.image.vm_agent.registry")
DELIVERED = (*PROGRAM, "remote.image.vm_agent.scripts")
MODULES = sorted(
    f"{package}.{file.name.removesuffix('.py')}"
    for package in DELIVERED
    for file in resources.files(package).iterdir()
    if file.name.endswith(".py")
)
SCRIPTS = [module for module in (*MODULES, "remote.pods.exec_agent") if "scripts." in module or "far_end" in module]


def imports_of(module: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source(module))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("module", [*MODULES, "remote.pods.exec_agent"])
def test_what_is_delivered_parses_as_python_3_9_and_imports_what_is_delivered_with_it(module: str) -> None:
    ast.parse(source(module), feature_version=(3, 9))
    ours = program(*PROGRAM)
    for name in imports_of(module):
        if name.startswith("remote."):
            assert module not in SCRIPTS, "a script stands alone"
            found = find_spec(name)
            assert found is not None
            assert ours.path(f"{name}.__init__" if found.submodule_search_locations else name)
        else:
            assert name.split(".")[0] in sys.stdlib_module_names or (module, name) == (
                "remote.image.vm_agent.hf_hub",
                "huggingface_hub",
            )


def test_every_module_of_ours_that_a_string_names_is_there() -> None:
    named = set()
    for folder in ("remote", "tasks"):
        for path in (ROOT / folder).rglob("*.py"):
            constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
            named |= {text for text in constants if isinstance(text, str) and re.fullmatch(r"remote(\.\w+)+", text)}
    assert {"remote.image.vm_agent.scripts.disk_info", "remote.pods.exec_agent", ONHOST} <= named
    assert [name for name in named if find_spec(name) is None] == []


@pytest.mark.parametrize("verb", ["build", "push", "archive", "fetch"])
def test_every_verb_of_the_build_vm_is_delivered_and_acts(local: LocalFleet, verb: str) -> None:
    module = f"remote.image.vm_agent.{verb}"
    assert agent_on(local.host()).path(module).endswith(f"/remote/image/vm_agent/{verb}.py")
    assert callable(importlib.import_module(module).act)


def test_a_name_that_points_to_nothing_is_said_here_and_not_on_the_host(local: LocalFleet) -> None:
    with pytest.raises(KeyError, match=r"remote\.image\.onvm\.brew is not in the program"):
        agent_on(local.host()).path("remote.image.vm_agent.brew")
    with pytest.raises(FileNotFoundError):
        source("remote.image.vm_agent.scripts.brew")
    with pytest.raises(ModuleNotFoundError):
        program("remote.brew")


def test_the_installer_and_the_program_have_the_same_exit_codes() -> None:
    assert (install.REFUSED, install.CUT_SHORT) == (util.REFUSED, util.CUT_SHORT)


def test_the_description_of_the_vm_needs_no_newer_python_than_3_5() -> None:
    text = source("remote.image.vm_agent.scripts.vm_info")
    ast.parse(text, feature_version=(3, 5))
    assert not any(isinstance(node, ast.JoinedStr) for node in ast.walk(ast.parse(text)))
    assert "__future__" not in imports_of("remote.image.vm_agent.scripts.vm_info")
