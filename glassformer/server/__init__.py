"""HTTP over the library: models written with, read with and looked into, by programs and by a page.

The parts of one request's way: `guard` (who may ask), `passage` (how much, how long, how many), then the
routes. Everything here needs the extra `glassformer[serve]`.
"""
