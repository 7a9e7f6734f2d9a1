"""Triton kernels for decode steps, which are bound by memory bandwidth on a GPU.

`linear` reads a weight once and fuses norm, activation and residual into the same kernel; `decode_attention`
computes the attention of one step, with a KV cache that is never reordered; `top_k` finds the most likely
tokens in one pass; `launch` replays a step as a CUDA graph. These modules may be imported only if Triton is
installed.
"""
