"""`inv tenancy`: show the tenancy's resources, read in parallel, and the settings derived from them.

A failed request is shown as a line with the missing policy; the rest is shown regardless.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import yaml
from invoke.context import Context

from tasks.cli.command_result import CommandResult
from tasks.errors import TaskFailed
from tasks.oci import discovery
from tasks.oci.clients import connect, get_namespace, resolve_compartment
from tasks.oci.discovery import Json, derive_settings
from tasks.settings.layers import Settings, load

_IF_EMPTY = {
    "limits": f"request A10 GPUs in the console: Limits ({discovery.GPU_LIMIT})",
    "clusters": "set tenancy.compartment to another compartment",
    "repositories": "`inv tenancy.repository` creates one",
}


def show_tenancy(context: Context) -> CommandResult:
    survey = survey_tenancy(load(context))
    derived, errors = derive_settings(survey), survey["errors"]
    failure = TaskFailed(f"{len(errors)} of the requests failed: see the lines with !") if errors else None
    data = {"tenancy": survey, "settings": derived}
    return CommandResult(data=data, show=partial(_print, survey, derived), failure=failure)


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


def _print(survey: Json, derived: Json) -> None:
    errors = survey["errors"]
    remedies = [f"no {part}: {remedy}" for part, remedy in _IF_EMPTY.items() if not survey[part] and not errors]
    shown = {name: value for name, value in survey.items() if name != "errors"}
    print("\n".join([_to_yaml(shown), *remedies, *(f"! {line}" for line in errors)]))
    print(f"\nsettings for ~/.invoke.yaml:\n\n{_to_yaml(derived)}")


def _to_yaml(data: Json) -> str:
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
