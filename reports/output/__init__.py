"""Files of the report: page, Markdown, CSV, JSON.

build: builds the report of a run's folder, replacing each file atomically, also while a run continues
html: the page, from templates/
markdown: report.md
tables: summary.json, and every CSV file
methods_text: the method of the report as text
"""
