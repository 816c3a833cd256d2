"""What runs on the build VM. Standard library alone, Python 3.9 or newer."""
