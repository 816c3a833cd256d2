"""The build VM: its engine, the build context, the registry, long work as jobs."""
