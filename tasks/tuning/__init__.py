"""What `inv tune` is made of: the space of configurations, the search through it, and its answer. Pure, save files."""
