"""Fixtures: a small model folder and data."""

from tests.support.small_inputs import data_file, make_record, model_folder

__all__ = ["data_file", "make_record", "model_folder"]
