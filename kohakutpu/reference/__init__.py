"""What kernels mean: interpreters that know the language and the number formats, and nothing of the compiler."""

from .interpreter import Constants, Image, InterpreterError, interpret

__all__ = ["Constants", "Image", "InterpreterError", "interpret"]
