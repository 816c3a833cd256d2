"""Tests of YAML for kubectl: texts that look like numbers."""

import pytest
import yaml

from remote.cluster.manifests import to_yaml


# tests/system/cluster has such texts as annotations and real kubectl.
@pytest.mark.parametrize("text", ["12e34567", "1234567890123456", "0x1f", "1_000", "no", "null", "~", "", "a: b"])
def test_a_text_is_quoted_whatever_it_looks_like(text: str) -> None:
    written = to_yaml([{"digest": text, "replicas": 4, "none": None, "yes": True}])
    assert '"digest": "' in written
    assert yaml.safe_load(written) == {"digest": text, "replicas": 4, "none": None, "yes": True}


def test_each_object_is_a_document_and_keeps_its_order() -> None:
    written = to_yaml([{"b": 1, "a": ["x"]}, {"c": 2}])
    assert written.count("---") == 1
    assert list(yaml.safe_load_all(written)) == [{"b": 1, "a": ["x"]}, {"c": 2}]
    assert written.index('"b"') < written.index('"a"')
