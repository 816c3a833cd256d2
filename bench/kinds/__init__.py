"""One module for each kind of trial, with its `measure(record, inputs, stops)`."""
