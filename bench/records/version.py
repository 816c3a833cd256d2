"""Version of qlora-fleet: of the package, of `inv --version`, of every record and of the image's label."""

VERSION = "1.0.0"
