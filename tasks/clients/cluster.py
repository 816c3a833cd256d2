"""The cluster as the tasks see it: prints which one is used, and gives its errors the exit codes."""

import contextlib
import json
from collections.abc import Iterator

from bench.records.atomic_files import write_atomic
from remote.cluster.client import Cluster
from remote.cluster.errors import ClusterError, Conflict, Forbidden, Misconfigured, Unreachable
from remote.cluster.kubeconfig import Target, resolve
from tasks.cli.terminal import asks
from tasks.errors import ConfirmationRequired, Interrupted, RetryableError, TaskFailed, UsageError
from tasks.settings.load import Settings

LAST_FILE = "cluster.json"


@contextlib.contextmanager
def cluster_of(settings: Settings, *, changes: bool = False, yes: bool = False) -> Iterator[Cluster]:
    """The cluster of the settings, printed; its errors become a task's. `changes`: this task will change something.

    A change in a cluster that looks like production asks first, unless it is the one this project changed last.
    """
    target = announced(settings)
    with errors():
        if changes:
            _confirm(settings, target, yes=yes)
        cluster = Cluster(target)
        try:
            yield cluster
        except KeyboardInterrupt:
            raise Interrupted("interrupted; what was started goes on; type the same to go on from there") from None
        finally:
            cluster.close()


def announced(settings: Settings) -> Target:
    """The cluster of the settings. Prints it, and a warning where it is not the one that was changed last."""
    target, last = target_of(settings), _last(settings)
    print(f"cluster: {target}", flush=True)
    if last and last != identity(target):
        was = f"context {last.get('context')}, namespace {last.get('namespace')}"
        print(f"ATTENTION: another cluster or namespace than last time ({was})", flush=True)
    return target


def target_of(settings: Settings) -> Target:
    """The cluster of the settings; a relative kubeconfig is read from the project's folder. Raises UsageError."""
    section = settings.cluster
    kubeconfig = str(settings.file(section.kubeconfig)) if section.kubeconfig else None
    with errors():
        return resolve(kubeconfig=kubeconfig, context=section.context, namespace=section.namespace)


def remember(settings: Settings, target: Target) -> None:
    """Write down which cluster was changed last. Raises OSError."""
    settings.results_folder.mkdir(parents=True, exist_ok=True)
    write_atomic(settings.results_folder / LAST_FILE, (json.dumps(identity(target)) + "\n").encode())


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """The cluster's errors as a task's: exit 2 what must be mended, 3 what may pass, 4 another's field, 1 the rest."""
    try:
        yield
    except (Misconfigured, Forbidden) as error:
        raise UsageError(str(error)) from None
    except Conflict as error:
        raise ConfirmationRequired(str(error)) from None
    except Unreachable as error:
        raise RetryableError(str(error)) from None
    except ClusterError as error:
        raise TaskFailed(str(error)) from None


def identity(target: Target) -> dict[str, str]:
    """Which cluster this is, and where in it, for a record."""
    return {"context": target.context, "server": target.server, "namespace": target.namespace}


def _last(settings: Settings) -> dict[str, str | None]:
    """The identity of the cluster that was changed last; empty where none was."""
    try:
        last = json.loads((settings.results_folder / LAST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # never written, or not by us: then there is nothing to compare with
    return {key: last.get(key) for key in ("context", "server", "namespace")} if isinstance(last, dict) else {}


def _confirm(settings: Settings, target: Target, *, yes: bool) -> None:
    if not target.looks_like_production or yes or _last(settings) == identity(target):
        return
    if not asks(f"{target.context}/{target.namespace} looks like production. Change it?"):
        raise ConfirmationRequired(
            f"context {target.context}, namespace {target.namespace} looks like production and was not used before; "
            "type the same with --yes if it is meant, or set cluster.context"
        )
