"""Files of the report: page, Markdown, CSV, JSON.

build: builds the report of a run's folder, replacing each file atomically
html: the page, from templates/
markdown: report.md
tables: summary.json and summary.csv
failure_groups: failures and missing results, similar ones in one line
csv_frames: frames as CSV
methods_text: the method of the report as text
watch: rebuilds the report while a run continues
"""
