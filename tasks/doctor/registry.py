"""List of all checks, by subject, in the order of their output: this machine first, the cluster last."""

from tasks.doctor.check import Check
from tasks.doctor.checks import cluster, gpu, machine, models, nodes, oci, pods, registry, runs, settings, vm

CHECKS: tuple[Check, ...] = (
    *(*machine.CHECKS, *settings.CHECKS, *gpu.CHECKS, *models.CHECKS, *runs.CHECKS),
    *(*oci.CHECKS, *vm.CHECKS, *registry.CHECKS, *cluster.CHECKS, *nodes.CHECKS, *pods.CHECKS),
)
SUBJECTS: tuple[str, ...] = tuple(dict.fromkeys(check.subject for check in CHECKS))
