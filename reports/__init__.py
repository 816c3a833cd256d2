"""From a run's folder to a page one can decide on. Reads results/<run-id>/ alone; never talks to a host.

`build.build` is the way in. The rest, in the order the data flows: `load` (files to frames, and what was refused),
`stats` and `cost` (pure numbers), `summary` (what is said), `figures`, then the writers `html`, `markdown`, `tables`.
"""
