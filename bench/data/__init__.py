"""data: from a model folder and data files to batches and examples, for benchmarks and trainings.

inputs: facts about checked inputs; InputError
trial_inputs: checks that a trial's model, data and recipe suit each other
model_folder: checks a model folder without loading it; the header of a weights file
formats: the formats of a data line, and the keys that decide what is trained on
file_types: rows of data files of every type, names of their columns, and the files of a pattern
readers: data files to conversations, each line checked
conversations: a line's object to its conversation
tool_calls: tools, calls and results of a line, each checked
tool_template: tool turns in the shape that a chat template writes
findings: findings about conversations, counted by kind
rendering: conversations to text, with the answers in it
tokenizer: a model folder's tokenizer, chat template and control tokens, without torch
masking: rendered conversations to token ids and target masks
example_file: examples in a file, read one by one
dataset: all data files of a training to its examples, cached by the digest of their inputs
packing: samples into rows and steps, by seed and epoch
collate: chats to tokenized rows to batches
demo: a small random model or a real one, with data
"""
