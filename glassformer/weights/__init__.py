"""Weights in and out: reversible operations on names and layouts, and safe reading and writing."""
