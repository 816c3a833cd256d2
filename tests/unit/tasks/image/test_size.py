"""Compressed size of the image, from the last push's record or estimated."""

import pytest

from remote.image.engine import ImageLayer
from tasks.image.size import _compressed_bytes
from tasks.settings.load import Settings


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"size_bytes": 7}'])
def test_an_invalid_push_record_is_ignored(tmp_path, text):
    settings = Settings(root=tmp_path)
    settings.results_folder.mkdir()
    settings.image_file.write_text(text)
    layer = ImageLayer(step="COPY", kind="code", size=7)
    assert _compressed_bytes(settings, [layer])[1].startswith("estimated")
