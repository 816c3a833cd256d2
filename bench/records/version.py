"""Version of qlora-fleet: of the package, of `inv --version`, of every record and of the image's label."""

VERSION = "2.0.0"
SCHEMA_VERSION = 2  # the first number of VERSION, in every record and JSON object
