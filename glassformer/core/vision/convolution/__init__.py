"""Convolutional parts: convolutions with batch norm, and residual networks as image backbones."""
