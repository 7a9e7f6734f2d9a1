"""The published families, one file each: options, config keys and weight names."""
