"""Faster inference: fused layers, weights packed for the device, and KV caches."""
