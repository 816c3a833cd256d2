"""Modules delivered to hosts: every name refers to a file, and every file runs there."""

import ast
import importlib
import re
import sys
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import pytest

from remote.agent.scripts import install
from remote.agent.shared import wire
from remote.hosts.bundle import load_program, read_source
from remote.image.vm_jobs import create_agent
from remote.jobs.job import HOST_AGENT, HOST_AGENT_MODULES
from tests.support.hosts.local_fleet import LocalFleet

ROOT = Path(__file__).parents[4]
PROGRAM = (HOST_AGENT, "remote.agent.build_vm", "remote.agent.shared")
DELIVERED = (*PROGRAM, "remote.agent.pods", "remote.agent.scripts")
MODULES = sorted(
    f"{package}.{file.name.removesuffix('.py')}"
    for package in DELIVERED
    for file in resources.files(package).iterdir()
    if file.name.endswith(".py")
)
SCRIPTS = [module for module in MODULES if module.split(".")[2] in ("pods", "scripts")]


def imports_of(module: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(read_source(module))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("module", MODULES)
def test_a_delivered_module_parses_as_python_3_9_and_imports_only_delivered_modules(module: str) -> None:
    ast.parse(read_source(module), feature_version=(3, 9))
    ours = load_program(*PROGRAM)
    for name in imports_of(module):
        if name.startswith("remote."):
            assert module not in SCRIPTS, "a script imports no other module of ours"
            spec = find_spec(name)
            assert spec is not None
            assert ours.path(f"{name}.__init__" if spec.submodule_search_locations else name)
        else:
            assert name.split(".")[0] in sys.stdlib_module_names or (module, name) == (
                "remote.agent.build_vm.hf_hub",
                "huggingface_hub",
            )


def test_the_host_agent_has_every_module_that_it_imports_and_no_other() -> None:
    program = load_program(*HOST_AGENT_MODULES)
    modules = {path.removesuffix(".py").replace("/", ".") for path in program.texts}
    imported = {name for module in modules for name in imports_of(module) if name.startswith("remote.")}
    assert {name for name in imported if name not in modules} == set()
    own = {module for module in modules if not module.startswith(HOST_AGENT) and not module.endswith("__init__")}
    assert own == {name for name in imported if not name.startswith(HOST_AGENT)}


def test_every_module_named_in_a_string_exists() -> None:
    named = set()
    for folder in ("remote", "tasks"):
        for path in (ROOT / folder).rglob("*.py"):
            constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
            named |= {text for text in constants if isinstance(text, str) and re.fullmatch(r"remote(\.\w+)+", text)}
    assert {"remote.agent.scripts.disk_info", "remote.agent.pods.exec_relay", HOST_AGENT} <= named
    assert [name for name in named if find_spec(name) is None] == []


@pytest.mark.parametrize("verb", ["build", "push", "archive", "fetch"])
def test_every_command_of_the_build_vm_is_delivered_and_has_a_run_function(local: LocalFleet, verb: str) -> None:
    module = f"remote.agent.build_vm.{verb}"
    assert create_agent(local.host()).path(module).endswith(f"/remote/agent/build_vm/{verb}.py")
    assert callable(importlib.import_module(module).run)


def test_the_installer_and_the_program_have_the_same_exit_codes() -> None:
    assert (install.EXIT_REFUSED, install.EXIT_TRUNCATED) == (wire.EXIT_REFUSED, wire.EXIT_TRUNCATED)
