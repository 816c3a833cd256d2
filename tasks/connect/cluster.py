"""What every task that talks to the cluster begins with: which one, said aloud; its errors with their exit codes."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.records.layout import IMAGE_FILE
from tasks.errors import Interrupted, Refused, Resumable, TaskFailed, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from remote.cluster.client import Cluster
    from remote.cluster.kubeconfig import Target
    from remote.cluster.manifests import Image, Values
    from tasks.fleet.uncollected import Uncollected
    from tasks.settings.load import Settings

LAST_FILE = "cluster.json"


@contextlib.contextmanager
def cluster_of(settings: Settings, *, changes: bool = False, yes: bool = False) -> Iterator[Cluster]:
    """The cluster of the settings, printed; its errors become a task's. `changes`: this task will change something.

    A change in a cluster that looks like production asks first, unless it is the one this project changed last.
    """
    from remote.cluster.client import Cluster

    target = announced(settings)
    with errors():
        if changes:
            _confirm(target, _last(settings), yes=yes)
        cluster = Cluster(target)
        try:
            yield cluster
        except KeyboardInterrupt:
            raise Interrupted("interrupted; what was started goes on, and the same again goes on from there") from None
        finally:
            cluster.close()


def announced(settings: Settings) -> Target:
    """The cluster that is meant, said aloud, and louder where it is not the one that was changed last."""
    target, last = target_of(settings), _last(settings)
    print(f"cluster: {target}", flush=True)
    if last is not None and not _is_same(last, target):
        was = f"context {last.get('context')}, namespace {last.get('namespace')}"
        print(f"ATTENTION: another cluster or namespace than last time ({was})", flush=True)
    return target


def target_of(settings: Settings) -> Target:
    """The cluster that the settings mean; a relative kubeconfig lies beside invoke.yaml. Raises UsageError."""
    from remote.cluster.kubeconfig import resolve

    section = settings.cluster
    kubeconfig = str(settings.root / Path(section.kubeconfig).expanduser()) if section.kubeconfig else None
    with errors():
        return resolve(kubeconfig=kubeconfig, context=section.context, namespace=section.namespace)


def remember(settings: Settings, target: Target, *, discarded: list[Uncollected]) -> None:
    """Write down which cluster was changed last, and which runs were lost by it."""
    from bench.records.durable import write_atomic
    from tasks.fleet.uncollected import discard

    told = {"context": target.context, "server": target.server, "namespace": target.namespace}
    try:
        settings.results_folder.mkdir(parents=True, exist_ok=True)
        write_atomic(settings.results_folder / LAST_FILE, (json.dumps(told) + "\n").encode())
        discard(discarded)
    except OSError as error:
        raise UsageError(f"results.folder: {settings.results_folder}: cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """The cluster's errors as a task's: exit 2 what must be mended, 3 what may pass, 4 another's field, 1 the rest."""
    from remote.cluster.errors import ClusterError, Conflict, Forbidden, Misconfigured, Unreachable

    try:
        yield
    except (Misconfigured, Forbidden) as error:
        raise UsageError(str(error)) from None
    except Conflict as error:
        raise Refused(str(error)) from None
    except Unreachable as error:
        raise Resumable(str(error)) from None
    except ClusterError as error:
        raise TaskFailed(str(error)) from None


def console() -> Console:
    """A console for tables of names, which must not be cut where nobody sees a terminal's edge."""
    from rich.console import Console

    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else 200)


def asks(question: str) -> bool:
    """Ask on the terminal; False where nobody can answer."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def image_of(settings: Settings) -> Image:
    """The image to run: cluster.image, or what `inv push` wrote. Raises UsageError; a tag alone is refused."""
    from remote.cluster.manifests import Image

    if settings.cluster.image is not None:
        try:
            return Image.parse(settings.cluster.image)
        except ValueError as error:
            raise UsageError(
                f"cluster.image: {error}, and a tag can move under running pods; write HOST/REPOSITORY@sha256:..., "
                "as `inv push` prints it"
            ) from None
    path = settings.results_folder / IMAGE_FILE
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{path}: not there; `inv push` writes it, or set cluster.image to HOST/REPOSITORY@sha256:..."
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}; `inv push` writes it anew") from None
    try:
        sizes = [said.get(key) for key in ("size_bytes", "compressed_bytes")]
        size = sum(sizes) if all(isinstance(one, int) for one in sizes) else None
        return Image.parse(f"{said['repository']}@{said['digest']}", size)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: not what `inv push` writes ({error}); `inv push` writes it anew") from None


def values_of(settings: Settings, image: Image) -> Values:
    """The settings as what enters the manifests."""
    from remote.cluster.manifests import Values

    section = settings.cluster
    return Values(
        namespace=section.namespace,
        overlay=section.overlay,
        image=image,
        size=settings.fleet.size,
        instance_type=section.instance_type,
        preemptible=section.preemptible,
        pull_secret=section.pull_secret,
        volume_handle=section.fss.volume_handle,
        capacity=section.fss.capacity,
        cpu=section.cpu,
        memory=section.memory,
        shm=section.shm,
        scratch=section.scratch,
        queue=section.queue,
        model=settings.model.path,
        data=settings.data.path,
        profile=settings.bench.profile,
    )


def pod_name(cluster: Cluster, asked: str | None) -> str:
    """The pod of this name, or of this index; the first Ready one where none is asked for. Raises UsageError."""
    from remote.cluster.diagnosis.pods import is_ready
    from remote.cluster.labels import INDEX_LABEL, label

    pods = sorted(cluster.pods(), key=lambda pod: (not is_ready(pod), str(pod["metadata"]["name"])))
    names = [str(pod["metadata"]["name"]) for pod in pods]
    if not pods:
        raise UsageError("no pod is deployed; `inv deploy` makes them")
    if asked is None:
        return names[0]
    if re.fullmatch(r"\d+", asked):
        of_index = [pod for pod in pods if label(pod, INDEX_LABEL) == asked]
        if of_index:
            return str(of_index[0]["metadata"]["name"])
    if asked in names:
        return asked
    raise UsageError(f"there is no pod {asked!r}; there are {', '.join(names)}; an index (0, 1, ...) does too")


def _last(settings: Settings) -> dict[str, Any] | None:
    try:
        said = json.loads((settings.results_folder / LAST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # never written, or not by us: then there is nothing to compare with
    return said if isinstance(said, dict) else None


def _is_same(last: dict[str, Any], target: Target) -> bool:
    return (last.get("context"), last.get("server"), last.get("namespace")) == (
        target.context,
        target.server,
        target.namespace,
    )


def _confirm(target: Target, last: dict[str, Any] | None, *, yes: bool) -> None:
    if not target.looks_like_production or yes or (last is not None and _is_same(last, target)):
        return
    if not asks(f"{target.context}/{target.namespace} looks like production. Change it?"):
        raise Refused(
            f"context {target.context}, namespace {target.namespace} looks like production and was not used before; "
            "type the same with --yes if it is meant, or set cluster.context"
        )
