"""Decoding one token at a time at the speed at which a GPU reads the weights: its kernels, by Triton.

`product` reads a matrix once and does everything around it in the same kernel; `look` is one step of
attention over a cache that is never reordered; `best` finds the likeliest tokens in one pass; `Captured`
replays a whole step without the host. A module here may be imported only where there is Triton.
"""
