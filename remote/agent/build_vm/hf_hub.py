"""Process for requests to the model hub through its own client: list a model's files, or download a file.

`remote.agent.build_vm.model_sources` starts it with a Python that has huggingface_hub. Each request, with the token if
there is one, is a line of JSON on standard input; each reply is a line on standard output. The client's own output goes
to standard error.
"""

import errno
import json
import os
import resource
import sys
from typing import Any

HUB_ENVIRONMENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",  # use only the operator's token, never one stored on this machine
    "HF_HUB_OFFLINE": "0",
}
LIST_MEMORY_BYTES = 768 << 20
LIST_TIMEOUT_SEC = 60.0  # without data; the client has no timeout by default
# Error classes of the client, and of the libraries below it, after which a retry may succeed.
TRANSIENT = frozenset(
    (
        *("ConnectError", "TransportError", "ConnectionError", "Timeout", "TimeoutException", "ChunkedEncodingError"),
        *("LocalEntryNotFoundError", "IncompleteRead", "RemoteProtocolError", "FileMetadataError"),
    )
)


def list_files(request: dict[str, Any]) -> dict[str, Any]:
    """Resolve `revision` to a commit and list its files with size and the hub's digest."""
    from huggingface_hub import HfApi

    # The client reads a response of any size into memory.
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (LIST_MEMORY_BYTES, before[1]))
    try:
        api = HfApi(endpoint=request["endpoint"], token=request["token"] or False)
        info = api.model_info(
            request["model"], revision=request["revision"], files_metadata=True, timeout=LIST_TIMEOUT_SEC
        )
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


def download_file(request: dict[str, Any]) -> dict[str, Any]:
    """Download one file into `folder`; resume an interrupted download."""
    from huggingface_hub import hf_hub_download

    hf_hub_download(
        request["model"],
        request["path"],
        revision=request["revision"],
        local_dir=request["folder"],
        token=request["token"] or False,
        endpoint=request["endpoint"],
    )
    return {}


def classify_error(request: dict[str, Any], error: Exception) -> dict[str, str]:
    """Return the fields of `remote.agent.shared.errors.VmAgentError`: kind, message, remedy."""
    names = {kind.__name__ for kind in type(error).__mro__}
    model, endpoint = request["model"], request["endpoint"] or "https://huggingface.co"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _failure("full", f"{request['folder']}: no space left on its disk")
    if "GatedRepoError" in names or (status in (401, 403) and request["token"] and "Repository" not in str(names)):
        cause = "this token may not read it" if request["token"] else "it needs a token"
        remedy = (
            f"accept its terms at {endpoint}/{model}, and set hub.token_file to a file with a token of that account"
        )
        return _failure("unauthorized", f"{model} is gated: {cause}", remedy)
    if "RevisionNotFoundError" in names:
        return _failure("usage", f"{model} has no revision {request['revision']!r}", "choose a commit, tag or branch")
    if "RepositoryNotFoundError" in names or status in (401, 403):
        remedy = "check its name and the token's rights" if request["token"] else "set hub.token_file if it is private"
        return _failure("usage", f"{model}: not found on the hub at {endpoint}", remedy)
    hub = f"{model}: the hub at {endpoint}"
    if isinstance(error, MemoryError):
        return _failure("refused", f"{hub}: its response exceeds {LIST_MEMORY_BYTES >> 20} MiB of memory")
    message = " ".join(str(error).split())[:300] or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        remedy = "on the VM set SSL_CERT_FILE to a file with its authority's certificate, or have it renewed"
        return _failure("usage", f"{hub}: its certificate is not valid: {message}", remedy)
    if names & TRANSIENT or status == 429 or (status or 0) >= 500 or "Consistency check failed" in message:
        return _failure("transient", f"{hub}: {message}")
    return _failure("failed", f"{hub}: {type(error).__name__}: {message}")


def _failure(kind: str, problem: str, remedy: str = "") -> dict[str, str]:
    return {"kind": kind, "message": problem, "remedy": remedy}


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        os.environ.update(HUB_ENVIRONMENT, HF_HOME=request["home"])  # before the client is imported
        if request["token"] and (request["endpoint"] or "").startswith("http:"):
            os.environ.update(NO_PROXY="*", no_proxy="*")  # the endpoint is this machine; a proxy could read the token
        try:
            answer = {"ok": True, **{"list": list_files, "fetch": download_file}[request["verb"]](request)}
        except Exception as error:  # noqa: BLE001 - the client's errors have many base classes
            answer = {"ok": False, **classify_error(request, error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
