"""The processes of a run: how they find each other (detect, join) and what they agree on (crew, agreement).

`detect` needs no JAX, so that it can be asked where JAX does not work.
"""
