"""What kernels mean: interpreters that know the language and the number formats, and nothing of the compiler."""

from .exact import Precision, evaluate, saturations
from .interpreter import Constants, Image, InterpreterError, Saturation, interpret

__all__ = [
    "Constants", "Image", "InterpreterError", "Precision", "Saturation", "evaluate", "interpret", "saturations",
]  # fmt: skip
