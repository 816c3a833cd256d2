"""train: fine-tuning, from data files to what each step trains on.

rows: data files of four kinds to conversations, each line checked
examples: conversations to token ids, and which of them are targets
dataset: all data files of a training to its examples, training and validation apart
order: which examples train in which step
cache: examples on the disk, by the digest of what they were made from
check: what a training would train on, as a report
orders: a small data set of our own, for the real demo model
"""
