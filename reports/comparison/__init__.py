"""Two or more runs: may they be compared, and what differs.

conditions: what must be equal, by name
compare: configurations beside each other, with corrected verdicts
written: a comparison as compare.json and as a frame
"""
