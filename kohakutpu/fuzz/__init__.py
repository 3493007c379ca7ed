"""Random programs at the level of flits: made, run, compared, shrunk, and counted for coverage (docs/fuzzing.md)."""
