"""What an accelerator could do at best, to say what share of it a run makes use of."""

from __future__ import annotations

# Dense bfloat16 (on older cards float16) operations a second, from the makers' data sheets; the longer
# name stands before the shorter one that it contains.
PEAKS = {
    "GB200": 2.5e15,
    "B200": 2.25e15,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "V100": 125e12,
    "T4": 65e12,
}


def peak_flops(device_name: str) -> float | None:
    """Operations a second of a card by the name the driver gives it; None where it is not known.

    >>> peak_flops("NVIDIA H200"), peak_flops("a toaster")
    (989000000000000.0, None)
    """
    return next((peak for name, peak in PEAKS.items() if name in device_name), None)
