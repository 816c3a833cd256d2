"""Root folder of the project, for tests at any depth."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
