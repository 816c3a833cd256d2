"""From settings to a cluster, a build VM or workers that one can talk to; their failures as exit codes."""
