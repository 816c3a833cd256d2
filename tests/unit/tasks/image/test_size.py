"""The size of a push, from the record of the last one or estimated."""

import pytest

from remote.image.docker_client import ImageLayer
from tasks.image.size import _compressed
from tasks.settings.load import Settings


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"size_bytes": 7}'])
def test_a_record_that_is_none_is_no_record(tmp_path, text):
    settings = Settings(root=tmp_path)
    settings.results_folder.mkdir()
    settings.image_file.write_text(text)
    layer = ImageLayer(step="COPY", kind="code", size=7)
    assert _compressed(settings, [layer])[1].startswith("estimated")
