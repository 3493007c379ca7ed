"""KohakuTPU: a cycle-level simulator, kernel compiler and co-verification harness."""

__version__ = "0.1.0"
