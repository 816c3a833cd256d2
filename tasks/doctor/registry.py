"""All checks, by subject, in the order of their output: this machine first, the cluster last."""

import importlib
from collections.abc import Iterable

from remote.providers import PROVIDERS
from remote.providers.provider import Provider
from tasks.doctor.check import Check
from tasks.doctor.checks import bench, cluster, machine, nodes, registry, runs, settings, vm


def all_checks(providers: Iterable[Provider] | None = None) -> tuple[Check, ...]:
    """Return the checks of any cluster, and those of the given providers; None: of all providers."""
    modules = [module for provider in providers or PROVIDERS.values() for module in provider.checks]
    return (
        *(*machine.CHECKS, *settings.CHECKS, *bench.GPU_CHECKS, *bench.MODEL_CHECKS, *runs.CHECKS),
        *(check for module in modules for check in importlib.import_module(module).CHECKS),
        *(*vm.CHECKS, *registry.CHECKS, *cluster.CHECKS, *nodes.CHECKS, *nodes.POD_CHECKS),
    )
