"""The dtypes that a model computes in, and whether this machine can compute in them.

Some CPUs advertise bfloat16 instructions that the operating system does not enable: the first matrix
multiplication then kills the process. So low precision on a CPU is tried once in a child process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from glassformer.errors import InvalidValueError, UnknownNameError, UnsupportedError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPE_ALIASES = {
    **{"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"},
    **{"half": "float16", "float": "float32"},
}

_TRIAL = """
import torch
for size in (4, 64, 257):
    a = torch.randn(size, size).to(torch.{dtype})
    torch.nn.functional.linear(a, a).sum().item()
q = torch.randn(1, 2, 33, 16).to(torch.{dtype})
torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().item()
"""


@cache
def cpu_supports(dtype: str) -> bool:
    """Whether this CPU can multiply matrices of `dtype`, tried in a child process."""
    trial = _TRIAL.format(dtype=dtype)
    result = subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False)
    return result.returncode == 0


def upcast(x: Tensor) -> Tensor:
    """Return x in at least float32: half precision is cast, float64 stays.

    >>> [upcast(torch.ones(2, dtype=dtype)).dtype for dtype in (torch.float16, torch.float64)]
    [torch.float32, torch.float64]
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def parse_dtype(name: str | torch.dtype) -> torch.dtype:
    """Parse float32, bfloat16 or float16, or a short name such as bf16."""
    if isinstance(name, torch.dtype):
        name = str(name).removeprefix("torch.")
    name = DTYPE_ALIASES.get(name, name)
    if name not in DTYPES:
        raise UnknownNameError("dtype", name, list(DTYPES))
    return DTYPES[name]


def resolve_dtype(
    requested: torch.dtype | str | None, device: str | torch.device, weights: Iterable[Tensor] = ()
) -> torch.dtype | None:
    """Return the dtype to load weights in: as requested; default: float32 on a CPU, else as stored (None).

    "stored" keeps the dtype of each tensor in the file, for models that are only saved again.
    """
    if requested == "stored":
        return None
    on_cpu = torch.device(device).type == "cpu"
    if requested is None:
        low = any(t.dtype in (torch.float16, torch.bfloat16) for t in weights)
        return torch.float32 if on_cpu and low else None
    dtype = parse_dtype(requested)
    if on_cpu and dtype != torch.float32:
        name = str(dtype).removeprefix("torch.")
        if not cpu_supports(name):
            raise UnsupportedError("this CPU", f"{name} matrix products", hint="use float32, or a GPU")
    return dtype


def resolve_device(name: str, setting: str = "device") -> torch.device:
    """Return a device that can compute; "auto" is a GPU if there is one. setting: its name in errors."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if not torch.empty(0, device=device).is_meta:  # meta tensors have no data
            return device
    except (RuntimeError, AssertionError):
        pass
    raise InvalidValueError(setting, name, "an available device", "`glassformer env` lists the devices")
