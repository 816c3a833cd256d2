"""Two or more runs: may they be compared, and what differs.

conditions: what must be equal, by name
compare: configurations beside each other, with corrected verdicts
taken: what a run's trials say of each quantity
verdicts: from differences to words, corrected for how many there are
written: a comparison as compare.json and as a frame
"""
