"""train: training data of a fine-tuning, from data files to the examples of each step.

readers: data files of four kinds to conversations, each line checked
keys: keys of a line that decide what is trained on
bad_lines: lines that cannot be used: listed, or left out if they are few
masking: conversations to token ids and target masks
control_tokens: control tokens typed in a text, tokenized as text
dataset: all data files of a training to its training and validation examples
sampler: examples to packed rows and steps, by seed and epoch
cache: examples on the disk, by the digest of their inputs
check: report on the training data
demo_orders: a small data set for the real demo model
"""
