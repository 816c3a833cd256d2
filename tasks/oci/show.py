"""`inv tenancy`: what the tenancy has, and the settings that follow. Everything is asked side by side.

What may not be read is a line with the policy that is missing; the rest is shown all the same.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import yaml
from invoke.context import Context

from tasks.cli.terminal import console, table
from tasks.errors import TaskFailed
from tasks.oci import discovery
from tasks.oci.access.clients import Access, access, compartment_of, namespace_of
from tasks.oci.discovery import TenancySurvey, settings_for
from tasks.oci.user_config import write_user_settings
from tasks.settings.load import load


def show_tenancy(context: Context, *, write: bool) -> None:
    settings = load(context)
    entry = access(settings)
    namespace = namespace_of(entry)  # alone and first: credentials that are refused are one line
    compartment, name = compartment_of(settings, entry)
    found = survey(entry, namespace, compartment, name)
    _print(found)
    wanted = settings_for(found)
    print("\nsettings for ~/.invoke.yaml (`inv tenancy --write` puts them there):\n")
    print(yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True))
    for line in _undecided(found):
        print(f"  {line}")
    if write:
        for line in write_user_settings(wanted):
            print(line)
    if found.unread:
        raise TaskFailed(f"{len(found.unread)} of the questions were not answered: the lines with ! above say why")


def survey(entry: Access, namespace: str, compartment: str, name: str) -> TenancySurvey:
    """Ask for everything. What is refused is in `unread`."""
    asks: dict[str, Callable[[], Any]] = {
        "tenancy": lambda: discovery.tenancy_name(entry),
        "user": lambda: discovery.user_name(entry),
        "limits": lambda: discovery.gpu_limits(entry),
        "clusters": lambda: discovery.clusters(entry, compartment),
        "repositories": lambda: discovery.repositories(entry, compartment),
        "exports": lambda: discovery.exports(entry, compartment),
    }
    answers: dict[str, Any] = {}
    unread: list[str] = []
    with ThreadPoolExecutor(max_workers=len(asks)) as pool:
        running = {part: pool.submit(ask) for part, ask in asks.items()}
        for part, future in running.items():
            try:
                answers[part] = future.result()
            except TaskFailed as error:
                unread.append(str(error))
            except (LookupError, TypeError, ValueError) as error:  # a field that every such object has
                unread.append(f"{part}: the answer lacks what was expected: {type(error).__name__} {error}")
    return TenancySurvey(region=entry.region, namespace=namespace, compartment=name, unread=tuple(unread), **answers)


def _print(found: TenancySurvey) -> None:
    screen = console()
    rows: Mapping[str, str | None] = {
        "tenancy": found.tenancy,
        "region": found.region,
        "namespace": found.namespace,
        "compartment": found.compartment,
        "registry": f"{found.registry}/{found.namespace}",
        "repositories": ", ".join(found.repositories) or "none; `inv tenancy.repository` makes one",
    }
    for name, value in rows.items():
        screen.print(f"{name:<13}{value or 'not known'}")
    for limit in found.limits:
        screen.print(f"{'A10 GPUs':<13}{limit.used} of {limit.most} in use in {limit.domain}")
    if not found.limits:
        screen.print(
            f"{'A10 GPUs':<13}none allowed here (limit {discovery.GPU_LIMIT}); ask for them in the console: Limits"
        )
    pools = table("cluster", "version", "state", "endpoint", "pool", "shape", "nodes")
    for cluster in found.clusters:
        end = "public" if cluster.public else "private"
        shown = [(pool.name, pool.shape, str(pool.size)) for pool in cluster.pools if pool.has_gpus]
        for one in shown or [("no GPU pool", "-", "-")]:
            pools.add_row(cluster.name, cluster.version, cluster.state, end, *one)
    if pools.row_count:
        screen.print(pools)
    else:
        screen.print(f"{'clusters':<13}none in this compartment; tenancy.compartment names another")
    for export in found.exports:
        screen.print(f"{'file system':<13}{export.mount_target} {export.address}:{export.path}")
    for line in found.unread:
        screen.print(f"! {line}")


def _undecided(found: TenancySurvey) -> list[str]:
    """What the tenancy has several of, so that a person has to choose."""
    pools = [pool for cluster in found.clusters for pool in cluster.pools if pool.has_gpus]
    lines = []
    if len(pools) > 1:
        lines.append(
            f"cluster.instance_type: one of {', '.join(sorted({pool.shape for pool in pools}))}: yours to choose"
        )
    if len(found.exports) > 1:
        lines += [f"cluster.fss.volume_handle: {export.handle}" for export in found.exports]
    return lines
