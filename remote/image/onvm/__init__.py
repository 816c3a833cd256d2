"""What runs on the build VM. Standard library alone, Python 3.9 or newer.

archive: an image as one compressed file, and back
build: assembles the context and builds
fetch: a model into its folder, verified
hub: asks the model hub through its own client
job: the job around each of these: log, progress, outcome
push: pushes an image and asks the registry what it has
scripts: programs of one file, each sent with one command
sources: where a model comes from
"""
