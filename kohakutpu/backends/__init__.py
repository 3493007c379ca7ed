"""Back ends: one typed tree lowered to what a device runs. Importing one registers it with the launch surface.

`lowering` is the seam: the walk that all share, and the virtual methods that a target implements.
"""
