"""The machine as Amaranth components, and the tops generated from a machine description."""
