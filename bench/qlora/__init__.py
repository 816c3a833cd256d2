"""The training step that is measured."""
