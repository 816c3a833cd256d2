"""A small model folder and data."""

from tests.support.small_inputs import (
    data_file,
    edit_json,
    make_record,
    model_folder,
    sharded_folder,
    write_safetensors,
)

__all__ = ["data_file", "edit_json", "make_record", "model_folder", "sharded_folder", "write_safetensors"]
