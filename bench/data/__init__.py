"""From a model folder and a data file to batches."""
