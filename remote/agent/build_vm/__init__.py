"""Long work on the build VM, each verb a detached job.

archive: saves an image as one compressed file
build: assembles the context and builds the image
client: runs the engine's client and classifies its errors
fetch: fetches a model into its folder and verifies it
hf_hub: the model hub as a source, through its own client
job: runs one of the verbs, with log, progress and outcome
push: pushes an image and verifies what the registry has
"""
