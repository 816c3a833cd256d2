"""What the report says, as values: every writer and figure reads these and computes nothing of its own.

summary: the values of a whole report, a row per configuration
summarize: a loaded run and prices to a summary
choice: which configuration to train with, and what cannot be told from it
sentences: recommendation and finding
cautions: what to keep in mind, a line for each cause, the worst first
highlights: the numbers of the first screen
cost: speed to dollars
energy: joules, kilowatt hours and CO2
prices: the table of prices, read and checked
scaling: how much faster several GPUs are, measured or assumed
pivot: measurements as tables for people
"""
