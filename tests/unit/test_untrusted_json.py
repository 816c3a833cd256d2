"""Every reader of JSON from outside refuses the same documents, as its callers expect."""

import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from remote.cluster.namespace_client import Cluster
from remote.fleet.ledger import Ledger, LedgerError
from remote.hosts.host_protocol import Completed, HostUnreachable, parse_json
from remote.hosts.local import LocalHost
from remote.hosts.pods.kubectl import Unreachable
from remote.image.plan import model_digests
from remote.serving import BadServer, ServerClient
from reports.read import attempts
from tasks.clients.registry import read_push_record
from tasks.errors import TaskFailed
from tasks.image.verify import parse_report
from tasks.settings.layers import Settings
from tests.support.cases import Case, load_cases
from tests.support.machines.fake_openai import FakeOpenAI


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def parse_cluster_response(text: str, _folder: Path) -> object:
    client = SimpleNamespace(target=SimpleNamespace(server="https://c"))
    client._response_error = functools.partial(Cluster._response_error, cast(Cluster, client))
    return Cluster._parse(cast(Cluster, client), "/api", text.encode())


def read_from_host(text: str, _folder: Path) -> object:
    return parse_json(LocalHost(name="a", workdir="/"), text, "the answer", lambda document: document["key"])


def parse_server_models(text: str, _folder: Path) -> object:
    with FakeOpenAI({}, broken=(200, text.encode(), {})) as served:
        return ServerClient(served.url, None).models()


def read_ledger(text: str, folder: Path) -> object:
    return Ledger(write(folder / "ledger.jsonl", text + "\n"))


def read_attempts(text: str, folder: Path) -> object:
    write(folder / "ledger.jsonl", text)
    return attempts.read(folder, "one")


def read_push(text: str, folder: Path) -> object:
    settings = Settings(root=folder)
    write(settings.image_file, text)
    return read_push_record(settings)


READERS: dict[Callable[[str, Path], object], Any] = {  # with the result for each document, or the error
    parse_cluster_response: Unreachable,
    parse_server_models: BadServer,
    read_ledger: LedgerError,
    read_attempts: [],
    read_push: (ValueError, OSError),
    read_from_host: HostUnreachable,
    lambda text, _: model_digests({"qlora-fleet.models": text or "[]"}): {},
    lambda text, _: parse_report("i", Completed(exit_code=0, stdout=text.encode())): TaskFailed,
}


@pytest.mark.parametrize("case", load_cases(__file__, "untrusted_json.yaml"))
def test_refused(case: Case, tmp_path: Path) -> None:
    text = case["text"].replace("%", case.get("fill", "") * case.get("times", 1))
    for number, (read, expected) in enumerate(READERS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        if isinstance(expected, (type, tuple)):
            with pytest.raises(expected):
                read(text, folder)
        else:
            assert read(text, folder) == expected
