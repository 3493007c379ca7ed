"""Words that depend on a number."""

from __future__ import annotations


def counted(number: int, noun: str, rest: str = "", *, plural: str = "", form: str = "") -> str:
    """`1 flit`, `2 flits`: `noun` is of one, `plural` of any other number where an s does not make it; `rest` follows.

    `form` is how the number is formatted, such as `,` for thousands.
    """
    return f"{number:{form}} {noun if number == 1 else plural or noun + 's'}{rest and ' ' + rest}"
