"""Looking at traces: what a trace shows in numbers, as text, as a timeline, as a page, and beside waves.

`docs/viewing.md` says what every figure means. Nothing here runs a machine: a trace file holds all that is needed.
"""


class ViewError(ValueError):
    """A trace that cannot be looked at as asked: says which and why."""
