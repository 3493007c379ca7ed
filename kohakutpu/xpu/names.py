"""The names that a kernel's source uses. Host code cannot call them: they have a meaning only where they are read."""

from __future__ import annotations

from .errors import HostUse
from .verbs import VERBS


class VerbName:
    """A built-in, by its name in `verbs.VERBS`."""

    def __init__(self, verb: str):
        self.verb = verb

    def __call__(self, *_, **__):
        raise HostUse(f"{self.verb} has a meaning only inside a kernel or a helper")

    def __repr__(self) -> str:
        return self.verb


class Syntax(VerbName):
    """A word for what Python's own syntax cannot say."""


class Namespace:
    """The built-ins below one name, such as `wave`."""

    def __init__(self, name: str, **more):
        self.__name__ = name
        for verb in VERBS:
            if verb.startswith(name + "."):
                setattr(self, verb.partition(".")[2], VerbName(verb))
        for word, value in more.items():
            setattr(self, word, value)

    def __getattr__(self, word: str):
        words = ", ".join(sorted(k for k in vars(self) if not k.startswith("_")))
        raise AttributeError(f"{self.__name__} has no {word}; it has {words}")


thread, barrier, wave, quad, math, bits, async_copy = map(
    Namespace, ("thread", "barrier", "wave", "quad", "math", "bits", "async_copy")
)
workgroup = Namespace("workgroup")
group = Namespace("group", stripe=Syntax("group.stripe"))

bits_to_f32, f32_to_bits, bits_to_f64, f64_to_bits = map(
    VerbName, ("bits_to_f32", "f32_to_bits", "bits_to_f64", "f64_to_bits")
)
div = Syntax("div")
rem = Syntax("rem")
lshr = Syntax("lshr")
label = Syntax("label")
do_while = Syntax("do_while")
break_to = Syntax("break_to")
continue_to = Syntax("continue_to")


class Unmodelled:
    """A type of the full product that has no meaning here; a parameter of it is refused by its name."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


Texture, Image, Sampler, RayQuery = map(Unmodelled, ("Texture", "Image", "Sampler", "RayQuery"))
