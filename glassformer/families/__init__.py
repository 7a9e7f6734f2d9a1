"""The published families, one file each: words, config, weight names. Data, not maths."""
