"""The bundled model: a few million parameters that tell stories and recall notes."""

from pathlib import Path


def model_path() -> Path:
    """The directory of the trained model, in Hugging Face format; it ships with the package."""
    return Path(__file__).parent / "model"
