"""Connection to the cluster of the settings: prints its name, and translates its errors to exit codes."""

import contextlib
import json
from collections.abc import Iterator

from bench.records.atomic_files import write_atomic
from remote.cluster.client import Cluster
from remote.cluster.kubeconfig import Target, resolve
from remote.hosts.pods.errors import ClusterError, Conflict, Forbidden, Misconfigured, Unreachable
from remote.providers import GENERIC
from tasks.cli.terminal import confirm
from tasks.clients.provider import known_provider
from tasks.errors import ConfirmationRequired, Interrupted, RetryableError, TaskFailed, UsageError
from tasks.settings.load import Settings

LAST_FILE = "cluster.json"


@contextlib.contextmanager
def open_cluster(settings: Settings, *, changes: bool = False, yes: bool = False) -> Iterator[Cluster]:
    """Print and open the cluster of the settings; its errors become task errors. `changes`: the task changes objects.

    A task that changes a cluster that looks like production asks for confirmation, unless this project changed the
    same cluster last.
    """
    target = print_target(settings)
    with translate_cluster_errors():
        if changes:
            _confirm_production(settings, target, yes=yes)
        cluster = Cluster(target, known_provider(settings))
        try:
            yield cluster
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted", remedy="running jobs continue; rerun the command to resume") from error
        finally:
            cluster.close()


def print_target(settings: Settings) -> Target:
    """Print and return the cluster of the settings, with a warning if another cluster was changed last."""
    target, last = resolve_target(settings), _read_last_cluster(settings)
    print(f"cluster: {target}", flush=True)
    if last and last != target_identity(target):
        previous = f"context {last.get('context')}, namespace {last.get('namespace')}"
        print(f"ATTENTION: another cluster or namespace than last time ({previous})", flush=True)
    return target


def resolve_target(settings: Settings) -> Target:
    """Resolve the cluster of the settings. A relative kubeconfig is below the project's folder. Raises UsageError."""
    section = settings.cluster
    kubeconfig = str(settings.resolve_path(section.kubeconfig)) if section.kubeconfig else None
    with translate_cluster_errors():
        return resolve(
            kubeconfig=kubeconfig,
            context=section.context,
            namespace=section.namespace,
            provider=known_provider(settings) or GENERIC,
        )


def record_last_cluster(settings: Settings, target: Target) -> None:
    """Record the cluster that was changed last. Raises OSError."""
    settings.results_folder.mkdir(parents=True, exist_ok=True)
    write_atomic(settings.results_folder / LAST_FILE, (json.dumps(target_identity(target)) + "\n").encode())


@contextlib.contextmanager
def translate_cluster_errors() -> Iterator[None]:
    """Translate the cluster's errors: exit 2 needs a fix, 3 is transient, 4 another manager's field, 1 the rest."""
    try:
        yield
    except (Misconfigured, Forbidden) as error:
        raise UsageError.from_error(error) from error
    except Conflict as error:
        raise ConfirmationRequired.from_error(error) from error
    except Unreachable as error:
        raise RetryableError.from_error(error) from error
    except ClusterError as error:
        raise TaskFailed.from_error(error) from error


def target_identity(target: Target) -> dict[str, str]:
    """Return the context, server and namespace of a cluster, for a record."""
    return {"context": target.context, "server": target.server, "namespace": target.namespace}


def _read_last_cluster(settings: Settings) -> dict[str, str | None]:
    """Return the identity of the cluster that was changed last, or an empty dict."""
    try:
        last = json.loads((settings.results_folder / LAST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # missing, or not written by us
    return {key: last.get(key) for key in ("context", "server", "namespace")} if isinstance(last, dict) else {}


def _confirm_production(settings: Settings, target: Target, *, yes: bool) -> None:
    if not target.looks_like_production or yes or _read_last_cluster(settings) == target_identity(target):
        return
    if not confirm(f"{target.context}/{target.namespace} looks like production. Change it?"):
        raise ConfirmationRequired(
            f"context {target.context}, namespace {target.namespace} looks like production and was not used before",
            remedy="pass --yes to confirm, or set cluster.context",
        )
