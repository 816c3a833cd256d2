"""Tests of kubectl's recorded error messages."""

import pytest

from remote.hosts.pods.kubectl import Unreachable, to_cluster_error
from tests.support.cases import Case, load_cases


@pytest.mark.parametrize("case", load_cases(__file__, "kubectl_errors.yaml"))
def test_an_error_of_kubectl_becomes_one_line_of_the_right_exception(case: Case) -> None:
    error = to_cluster_error("kubectl apply", case["input"])
    assert type(error).__name__ == case["expected"]["error"]
    assert case["expected"]["token"] in str(error)
    assert "\n" not in str(error)
    assert "memcache.go" not in str(error)


def test_an_unknown_error_becomes_the_callers_exception() -> None:
    error = to_cluster_error(
        "kubectl exec", "I1120 websocket.go:296] Unknown stream id 1, discarding message\n", Unreachable
    )
    assert (type(error), str(error)) == (Unreachable, "kubectl exec: no message")
