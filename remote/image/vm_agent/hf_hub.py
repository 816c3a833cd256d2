"""Requests to the model hub through its own client, in a process of its own: the list of a model's files, or a file.

`remote.image.vm_agent.model_sources` starts it with a Python that has huggingface_hub. Each request, with the token if there is
one, is a line of JSON on standard input, each answer one on standard output. The client prints to standard error.
"""

import errno
import json
import os
import resource
import sys
from typing import Any

SETTLED = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",  # the token is the operator's, never one that this machine has
    "HF_HUB_OFFLINE": "0",
}
LIST_MEMORY_BYTES = 768 << 20
LIST_SEC = 60.0  # of silence; the client's own is without end
# Classes of the client's errors, and of those below it, after which another try may succeed.
TRANSIENT = frozenset(
    (
        *("ConnectError", "TransportError", "ConnectionError", "Timeout", "TimeoutException", "ChunkedEncodingError"),
        *("LocalEntryNotFoundError", "IncompleteRead", "RemoteProtocolError", "FileMetadataError"),
    )
)


def listed(asked: dict[str, Any]) -> dict[str, Any]:
    """The commit that `revision` is now, and its files with size and the hub's digest."""
    from huggingface_hub import HfApi

    # The client reads an answer whole, however long it is.
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (LIST_MEMORY_BYTES, before[1]))
    try:
        api = HfApi(endpoint=asked["endpoint"], token=asked["token"] or False)
        info = api.model_info(asked["model"], revision=asked["revision"], files_metadata=True, timeout=LIST_SEC)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    files = [
        {
            "path": file.rfilename,
            "size": file.size,
            "sha256": file.lfs.sha256 if file.lfs else None,
            "git_sha1": None if file.lfs else file.blob_id,
        }
        for file in info.siblings or []
    ]
    return {"revision": info.sha, "files": files}


def fetched(asked: dict[str, Any]) -> dict[str, Any]:
    """One file into `folder`; a broken download is continued."""
    from huggingface_hub import hf_hub_download

    hf_hub_download(
        asked["model"],
        asked["path"],
        revision=asked["revision"],
        local_dir=asked["folder"],
        token=asked["token"] or False,
        endpoint=asked["endpoint"],
    )
    return {}


def failure(asked: dict[str, Any], error: Exception) -> tuple[str, str]:
    """The kind of failure (as in `remote.image.vm_agent.job.Failed`), and what to do."""
    names = {kind.__name__ for kind in type(error).__mro__}
    model, endpoint = asked["model"], asked["endpoint"] or "https://huggingface.co"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "full", f"{asked['folder']}: no space left on its disk"
    if "GatedRepoError" in names or (status in (401, 403) and asked["token"] and "Repository" not in str(names)):
        page = f"{endpoint}/{model}"
        what = "this token may not read it" if asked["token"] else "it needs a token"
        message = f"{model} is gated: {what}; accept its terms at {page}, and name a file with a token of that account"
        return "unauthorized", f"{message} (hub.token_file)"
    if "RevisionNotFoundError" in names:
        return "usage", f"{model} has no revision {asked['revision']!r}; name a commit, tag or branch"
    if "RepositoryNotFoundError" in names or status in (401, 403):
        hint = "check its name and the token's rights" if asked["token"] else "a private one needs hub.token_file"
        return "usage", f"{model}: the hub at {endpoint} shows no such model; {hint}"
    if isinstance(error, MemoryError):
        return (
            "refused",
            f"{model}: the hub at {endpoint} answers with more than {LIST_MEMORY_BYTES >> 20} MiB can hold",
        )
    message = " ".join(str(error).split())[:300] or type(error).__name__
    if names & TRANSIENT or status == 429 or (status or 0) >= 500 or "Consistency check failed" in message:
        return "transient", f"{model}: the hub at {endpoint}: {message}"
    return "failed", f"{model}: the hub at {endpoint}: {type(error).__name__}: {message}"


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ.update(SETTLED, HF_HOME=asked["home"])  # before the client is imported
        if asked["token"] and (asked["endpoint"] or "").startswith("http:"):
            os.environ.update(NO_PROXY="*", no_proxy="*")  # this machine itself, and a proxy would read the token
        try:
            answer = {"ok": True, **{"list": listed, "fetch": fetched}[asked["verb"]](asked)}
        except Exception as error:  # noqa: BLE001 - the client's errors have many base classes
            kind, message = failure(asked, error)
            answer = {"ok": False, "kind": kind, "message": message}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
