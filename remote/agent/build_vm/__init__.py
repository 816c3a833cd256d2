"""Long work on the build VM, each verb a detached job.

archive: saves an image as one compressed file
build: assembles the context and builds the image
client: runs the engine's client and classifies its errors
fetch: fetches a model into its folder and verifies it
hf_hub: requests to the model hub through its own client
job: runs one of the verbs, with log, progress and outcome
model_sources: sources of a model: hub, cache, upload
push: pushes an image and verifies what the registry has
"""
