"""Decoding one token at a time at memory bandwidth on a GPU: kernels in Triton.

`linear` reads a matrix once and computes everything around it in the same kernel; `decode_attention` is one
step of attention over a cache that is never reordered; `top_k` finds the most likely tokens in one pass;
`launch` replays a whole step without the host. These modules may be imported only if Triton is installed.
"""
