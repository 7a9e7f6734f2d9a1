"""Processors turn raw inputs of one modality into the arguments of a model: text, images, time series.

See `glassformer.processors.base` for the common interface. Import only the module of the modality you need.
"""
