"""Interpretability: traces of a model on one input, logit lens, head patterns, ablation, interventions."""
