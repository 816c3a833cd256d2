"""Files of the report: page, Markdown, CSV, JSON.

write_report: builds the report of a run's folder, replacing each file atomically, also while a run continues
benchmark: the document of a benchmark
training_document: the document of a training
page: a document as a page, from templates/
markdown: a document as report.md
data_files: summary.json, and every CSV file
"""
