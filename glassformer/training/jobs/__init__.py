"""The training jobs: each module of this package declares one as `JOB`, and has its name.

A job is imported when it is used, so that the names alone cost nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from glassformer.errors import UnknownNameError
from glassformer.training.job_spec import JobSpec

_registered: dict[str, JobSpec] = {}


def register(job: JobSpec) -> None:
    """Add a job that is defined outside of this package."""
    _registered[job.name] = job


def job_names() -> list[str]:
    """Return the names of all jobs, without importing them."""
    return [*(module.name for module in iter_modules(__path__)), *_registered]


def all_jobs() -> Iterator[JobSpec]:
    """Yield all jobs, and each variant of a job with several kinds of input."""
    for name in job_names():
        job = find_job(name)
        yield from job.variants or (job,)


def find_job(name: str) -> JobSpec:
    """Return a job by its name."""
    if name in _registered:
        return _registered[name]
    if name not in job_names():
        raise UnknownNameError("job", name, job_names())
    job: JobSpec = import_module(f"{__name__}.{name}").JOB
    return job


def current_name(name: str, *, warn: bool = True) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a job, and the data settings that a name of a former version stands for.

    >>> current_name("images", warn=False)
    ('classify', {'input': 'image'})
    """
    if name not in job_names():
        for job in map(find_job, job_names()):
            if name in job.old_names:
                settings = job.old_names[name]
                if warn:
                    listed = " and ".join(f"data.{key} {value}" for key, value in settings.items())
                    message = f"the job {name} is now {job.name} with {listed}"
                    warnings.warn(message, FutureWarning, stacklevel=2)
                return job.name, settings
    return name, {}
