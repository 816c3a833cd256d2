"""data: model folder and data file to batches.

inputs: facts about checked inputs; InputError
trial_inputs: checks that a trial's model and data suit it
model_folder: checks a model folder without loading it
recipe_support: checks whether the recipe fast supports a model, from its config
conversations: reads a data file, one chat per line
safetensors_header: shapes and sizes of a weights file
tokenizer: a model folder's tokenizer and chat template, without torch
collate: chats to tokenized rows to batches
packing: samples into rows, packed or sorted by length
demo_tiny: makes a small random model and a data set
demo_smollm: makes a folder of a real small model
corpus: texts of the demo data, from the standard library's documentation strings
"""
