"""The report as files: page, Markdown, CSV, JSON."""
