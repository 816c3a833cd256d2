"""`inv tenancy`: show the tenancy's resources, read in parallel, and the settings derived from them.

A failed request is shown as a line with the missing policy; the rest is shown regardless.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import yaml
from invoke.context import Context

from tasks.cli.command_result import CommandResult
from tasks.cli.terminal import console, plain_table
from tasks.errors import TaskFailed
from tasks.oci import discovery
from tasks.oci.clients import connect, get_namespace, resolve_compartment
from tasks.oci.discovery import Json, derive_settings, gpu_pools, registry_host, volume_handle
from tasks.settings.layers import Settings, load


def show_tenancy(context: Context) -> CommandResult:
    survey = survey_tenancy(load(context))
    _print_survey(survey)
    derived = derive_settings(survey)
    print("\nsettings for ~/.invoke.yaml:\n")
    print(yaml.safe_dump(derived, sort_keys=False, allow_unicode=True))
    if len(pools := gpu_pools(survey)) > 1:
        print(f"  cluster.instance_type: choose one of {', '.join(sorted({pool['shape'] for pool in pools}))}")
    if len(survey["exports"]) > 1:
        print(*(f"  cluster.volume.handle: {volume_handle(export)}" for export in survey["exports"]), sep="\n")
    failure = TaskFailed(f"{len(survey['errors'])} of the requests failed: see the lines with ! above")
    data = {"tenancy": survey, "settings": derived}
    return CommandResult(data=data, failure=failure if survey["errors"] else None)


def survey_tenancy(settings: Settings) -> Json:
    """Read everything in parallel. `errors` has the failed requests, whose fields are empty.

    Raises a task's error for rejected credentials.
    """
    api = connect(settings)
    namespace = get_namespace(api)  # read first, so that rejected credentials give one error
    compartment, name = resolve_compartment(settings, api)
    queries: dict[str, tuple[Callable[[], Any], Any]] = {  # with the value of a failed one
        "tenancy": (lambda: discovery.get_tenancy_name(api), None),
        "user": (lambda: discovery.get_user_name(api), None),
        "limits": (lambda: discovery.list_gpu_limits(api), []),
        "clusters": (lambda: discovery.list_clusters(api, compartment), []),
        "repositories": (lambda: discovery.list_repositories(api, compartment), []),
        "exports": (lambda: discovery.list_exports(api, compartment), []),
    }
    survey: Json = {"region": api.region, "namespace": namespace, "compartment": name}
    errors: list[str] = []
    with ThreadPoolExecutor(max_workers=len(queries)) as pool:
        running = {part: pool.submit(query) for part, (query, _) in queries.items()}
        for part, future in running.items():
            try:
                survey[part] = future.result()
            except TaskFailed as error:
                survey[part] = queries[part][1]
                errors.append(str(error))
    return survey | {"errors": errors}


def _print_survey(survey: Json) -> None:
    screen = console()
    rows = {name: survey[name] for name in ("tenancy", "region", "namespace", "compartment")}
    rows["registry"] = f"{registry_host(survey['region'])}/{survey['namespace']}"
    rows["repositories"] = ", ".join(survey["repositories"]) or "none; `inv tenancy.repository` creates one"
    for name, value in rows.items():
        screen.print(f"{name:<13}{value or 'not known'}")
    for limit in survey["limits"]:
        screen.print(f"{'A10 GPUs':<13}{limit['used']} of {limit['maximum']} in use in {limit['domain']}")
    if not survey["limits"]:
        screen.print(f"{'A10 GPUs':<13}none allowed (limit {discovery.GPU_LIMIT}); request them in the console: Limits")
    pools = plain_table("cluster", "version", "state", "endpoint", "pool", "shape", "nodes")
    for cluster in survey["clusters"]:
        cells = (cluster["name"], cluster["version"], cluster["state"])
        endpoint_type = "public" if cluster["public_endpoint"] else "private"
        shown = [(pool["name"], pool["shape"], str(pool["size"])) for pool in gpu_pools({"clusters": [cluster]})]
        for row in shown or [("no GPU pool", "-", "-")]:
            pools.add_row(*cells, endpoint_type, *row)
    if pools.row_count:
        screen.print(pools)
    else:
        screen.print(f"{'clusters':<13}none in this compartment; set tenancy.compartment to another compartment")
    for export in survey["exports"]:
        screen.print(f"{'file system':<13}{export['mount_target']} {export['address']}:{export['path']}")
    for line in survey["errors"]:
        screen.print(f"! {line}")
