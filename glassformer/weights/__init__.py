"""Safetensors I/O, key mapping, checksums and int8 storage."""
