"""The report as files: page, Markdown, CSV, JSON.

build: a run's folder to its report, every file replaced atomically
html: the page, from templates/
markdown: report.md
tables: summary.json and summary.csv
grouping: what did not work, what is alike in one line
csv_frames: frames as CSV
method: how the numbers came about, in words
watch: the report renewed while a run is going on
"""
