"""data: from a model folder and a data file to batches.

inputs: what checked inputs hold, as values; InputError
trial_inputs: checks whether a trial's model and data suit it
model_folder: checks a model folder without loading it
chats: reads a data file, one chat per line
safetensors_header: shapes and sizes of a weights file
tokenizer: a model folder's tokenizer, without torch
batches: chats to tokenized rows to batches
packing: samples into rows, padded or packed
demo: makes a small model and data set; real_demo: a folder of a real small model
corpus: the demo's texts, from the standard library's documentation strings
"""
