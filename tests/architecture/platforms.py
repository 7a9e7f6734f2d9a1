"""Import every module of the package: python tests/architecture/platforms.py [--simulate]

CI runs this on Windows and macOS. With --simulate, our modules do not find what exists only on a Unix, so
that Linux shows the same failures; other libraries find it. Modules that need Triton or Ray are left out.
"""

from __future__ import annotations

import builtins
import importlib
import os
import pkgutil
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

OURS = {"glassformer", "conftest", "tests"}
UNIX_MODULES = {"resource", "fcntl", "pwd", "grp", "termios", "tty", "pty", "posix"}
UNIX_NAMES = {
    signal: ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGQUIT", "SIGCHLD", "pthread_sigmask"),
    os: (
        "fork",
        "sched_getaffinity",
        "getuid",
        "geteuid",
        "uname",
        "sysconf",
        "killpg",
        "mkfifo",
        "O_NONBLOCK",
    ),
}
NOT_EVERYWHERE = {"triton", "ray"}


def _without(module: ModuleType, names: tuple[str, ...]) -> ModuleType:
    copy = ModuleType(module.__name__)
    copy.__dict__.update({key: value for key, value in vars(module).items() if key not in names})
    return copy


def hide_unix() -> None:
    """Hide the Unix modules and names from our modules."""
    original = builtins.__import__
    limited = {id(module): _without(module, names) for module, names in UNIX_NAMES.items()}

    def restricted(name: str, globals: Any = None, *args: Any, **options: Any) -> ModuleType:
        importer = str((globals or {}).get("__name__", "")).split(".")[0]
        if importer not in OURS:
            return original(name, globals, *args, **options)
        if name.split(".")[0] in UNIX_MODULES | NOT_EVERYWHERE:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        module = original(name, globals, *args, **options)
        return limited.get(id(module), module)

    builtins.__import__ = restricted


def main() -> None:
    if "--simulate" in sys.argv:
        hide_unix()
    import glassformer

    names = [module.name for module in pkgutil.walk_packages(glassformer.__path__, "glassformer.")]
    names = [name for name in names if not name.endswith("__main__")]  # that runs the command line
    left_out = []
    for name in (*names, "conftest", "tests.conftest"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in NOT_EVERYWHERE:
                raise
            left_out.append(name)
    print(f"imported {len(names) + 2 - len(left_out)} modules; left out: {', '.join(left_out) or 'none'}")


if __name__ == "__main__":
    main()
