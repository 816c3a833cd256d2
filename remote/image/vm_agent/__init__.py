"""What runs on the build VM. Standard library alone, Python 3.9 or newer.

archive: an image as one compressed file, and back
build: assembles the context and builds
client: runs the engine's client; what its words mean
fetch: a model into its folder, verified
ground: a folder that is ours alone on shared ground
hub: asks the model hub through its own client
job: the job around each of these: log, progress, outcome
push: pushes an image and asks the registry what it has
registry: a registry, asked over HTTP
scripts: programs of one file, each sent with one command
sources: where a model comes from
"""
