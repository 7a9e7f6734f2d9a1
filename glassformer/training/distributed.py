"""One interface for training in a single process, with DDP and with FSDP.

Losses and gradients are summed over ranks, not averaged, and divided once by the units of all ranks. So a
step depends only on its batches, not on how they are divided into ranks and accumulation steps. Every rank
builds the same model from the same seed and makes these calls in the same order.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from inspect import signature
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from glassformer.core.block import Block
from glassformer.errors import InvalidValueError
from glassformer.training.learner import batch_norm_buffers

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class SingleProcess:
    """Training in one process; also the interface of the multi-process implementations."""

    device: torch.device
    rank: int = 0
    ranks: int = 1

    @property
    def main(self) -> bool:
        """Whether this rank writes files and logs."""
        return self.rank == 0

    def wrap(self, learner: nn.Module) -> nn.Module:
        """Move the learner to this rank's device and wrap it for training."""
        return learner.to(self.device)

    def broadcast_weights(self, learner: nn.Module) -> None:
        """Copy the weights and buffers of rank 0 to all ranks, before `wrap`."""

    def unwrap(self, module: nn.Module) -> nn.Module:
        """Return the learner inside a wrapped module."""
        return module

    def full_weights(self, module: nn.Module) -> AbstractContextManager[None]:
        """Context in which each rank has the full weights and can run or save the model alone; collective."""
        return nullcontext()

    def gradient_sync(self, module: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Context for forward and backward of a micro-batch; only the step's last one reduces gradients."""
        return nullcontext()

    def sync_batch_norm(self, module: nn.Module) -> None:
        """Average the running statistics of batch norms over ranks, after each step."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over ranks."""
        return tensor.detach().clone()

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return flag

    def barrier(self) -> None:
        """Wait for all ranks; rank 0 leaves last, since its process may host the store."""

    def close(self) -> None:
        """Leave the process group."""

    def grad_norm(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """Return the norm of the full gradient."""
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def gather_to_cpu(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return full copies of the tensors on the CPU of rank 0, and nothing on other ranks; collective."""
        gathered = {}
        for name, tensor in tensors.items():  # one full tensor at a time on the device
            value = tensor.detach()
            value = value.full_tensor() if isinstance(value, DTensor) else value
            if self.main:
                gathered[name] = value.to("cpu", copy=True)
        return gathered


@dataclass(frozen=True, kw_only=True)
class _MultiProcess(SingleProcess):
    """A rank of torch's default process group. store: the store that the group was initialized with."""

    store: dist.Store = field(repr=False)

    def sync_batch_norm(self, module: nn.Module) -> None:
        buffers = [buffer for buffer in batch_norm_buffers(module) if buffer.is_floating_point()]
        if buffers:
            mean = self.sum(torch.cat([buffer.flatten() for buffer in buffers])) / self.ranks
            for buffer, part in zip(buffers, mean.split([b.numel() for b in buffers]), strict=True):
                buffer.copy_(part.view_as(buffer))

    def broadcast_weights(self, learner: nn.Module) -> None:
        for tensor in (*learner.parameters(), *learner.buffers()):
            value = tensor.detach().to(self.device)  # one full tensor at a time on the device
            dist.broadcast(value, 0)
            tensor.detach().copy_(value)

    def sum(self, tensor: Tensor) -> Tensor:
        summed = tensor.detach().to(self.device, copy=True)
        dist.all_reduce(summed)
        return summed.to(tensor.device)

    def any(self, flag: bool) -> bool:
        return bool(self.sum(torch.tensor(int(flag))))

    def barrier(self) -> None:
        # with the store: after a collective, a rank may exit while another still waits for it
        _count(self.store, "arrived", self.ranks)
        self.store.wait(["all arrived"], TIMEOUT)
        if not self.main:
            _count(self.store, "left", self.ranks - 1)
        elif self.ranks > 1:  # the store may be in this process
            self.store.wait(["all left"], TIMEOUT)

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        # The threads of the process group end with the last reference to it. If they outlive the interpreter,
        # they can crash the process. Wrapped models hold the group in reference cycles.
        gc.collect()


@dataclass(frozen=True, kw_only=True)
class Ddp(_MultiProcess):
    """DDP: every rank holds the full model; gradients are summed during the backward pass."""

    def wrap(self, learner: nn.Module) -> nn.Module:
        renamed = "forward_sync_buffers"  # the name of broadcast_buffers in later releases of torch
        known = signature(DistributedDataParallel).parameters
        buffers: Any = {renamed if renamed in known else "broadcast_buffers": False}
        wrapped = DistributedDataParallel(
            learner.to(self.device),
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **buffers,  # position tables are constant, and `sync_batch_norm` handles statistics
        )
        wrapped.register_comm_hook(None, _sum_hook)
        return wrapped

    def unwrap(self, module: nn.Module) -> nn.Module:
        return cast(nn.Module, module.module)

    def gradient_sync(self, module: nn.Module, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else cast(Any, module).no_sync()


@dataclass(frozen=True, kw_only=True)
class Fsdp(_MultiProcess):
    """FSDP: every rank holds a shard of each weight; a block's weights are gathered only while it runs."""

    mesh: DeviceMesh = field(repr=False)

    def close(self) -> None:
        # torch caches each mesh, and with it the group, for the lifetime of the process
        getattr(self.mesh, "_pg_registry", {}).clear()
        super().close()

    def wrap(self, learner: nn.Module) -> nn.Module:
        for block in [module for module in learner.modules() if isinstance(module, Block)]:
            fully_shard(block, mesh=self.mesh)
        # the rest is one group, so tied embeddings stay one parameter
        fully_shard(learner, mesh=self.mesh)
        for part in _parts(learner):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        return learner

    @contextmanager
    def full_weights(self, module: nn.Module) -> Iterator[None]:
        for part in _parts(module):
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        # for a state dict FSDP would reshard the weights, which a rank alone cannot gather
        hooks = [(hook, dict(hook)) for hook in (part._state_dict_pre_hooks for part in module.modules())]
        for hook, _ in hooks:
            hook.clear()
        # CPU weights may be shared with NumPy, and resharding could not free them: share copies instead
        shared = [(weight, weight.data) for weight in module.parameters() if weight.device.type == "cpu"]
        for weight, data in shared:
            weight.data = data.clone()
        try:
            yield
        finally:
            for weight, data in shared:
                weight.data = data
            for hook, saved in hooks:
                hook.update(saved)
            for part in _parts(module):
                part.reshard()
                # the root's weights are needed at the start of the backward pass
                part.set_reshard_after_forward(part is not module, recurse=False)

    @contextmanager
    def gradient_sync(self, module: nn.Module, last: bool) -> Iterator[None]:
        root = cast(FSDPModule, module)
        root.set_requires_gradient_sync(last)
        root.set_is_last_backward(last)
        yield


Parallel = SingleProcess | Ddp | Fsdp
Kind = Literal["auto", "none", "ddp", "fsdp"]
TIMEOUT = timedelta(hours=4)  # a rank may wait while rank 0 prepares a large corpus


def parallel_from_environment(kind: Kind, device: torch.device | str) -> Parallel:
    """Initialize the process group of the ranks that torchrun started (gloo on CPUs, NCCL on GPUs).

    kind: "auto" is DDP if there is more than one process. FSDP also works in one process without torchrun.
    """
    device = torch.device(device)
    launched = "WORLD_SIZE" in os.environ
    names = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}
    rank, ranks, local_rank = (int(os.environ.get(name, default)) for name, default in names.items())
    if kind == "ddp" and not launched:
        raise InvalidValueError(
            "training.parallel",
            kind,
            "none, since this process was not started by torchrun",
            "start it with torchrun --nproc-per-node GPUS -m glassformer train RECIPE",
        )
    if kind == "none" and ranks > 1:
        raise InvalidValueError(
            "training.parallel", kind, f"ddp or fsdp, since torchrun started {ranks} processes"
        )
    if kind == "none" or (kind == "auto" and ranks == 1):
        return SingleProcess(device=device)
    if device.type == "cuda":  # one GPU per process
        count = torch.cuda.device_count()
        if local_rank >= count:
            started = int(os.environ.get("LOCAL_WORLD_SIZE", local_rank + 1))
            raise InvalidValueError("--nproc-per-node", started, f"at most {count}, the number of GPUs")
        torch.cuda.set_device(local_rank)
        device = torch.device("cuda", local_rank)
    backend = "nccl" if device.type == "cuda" else "gloo"
    store = _join(rank, ranks) if launched else dist.HashStore()
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    if kind == "fsdp":
        mesh = init_device_mesh(device.type, (ranks,))
        return Fsdp(device=device, rank=rank, ranks=ranks, store=store, mesh=mesh)
    return Ddp(device=device, rank=rank, ranks=ranks, store=store)


def _count(store: dist.Store, what: str, ranks: int) -> None:
    """Increment the counter `what` in the store; the last rank sets the key `all {what}`."""
    if store.add(what, 1) == ranks:
        store.set(f"all {what}", "")


def _parts(module: nn.Module) -> list[FSDPModule]:
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def _sum_hook(_, bucket):  # DDP inspects annotations and wants classes or none
    """DDP communication hook that sums gradients; by default DDP averages them."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _join(rank: int, ranks: int) -> dist.Store:
    """Return the rendezvous store of the ranks, with a prefix that no earlier process group used.

    A process may train several times; each rank counts how often it joined, and the count is part of the
    prefix. torchrun keeps one store over its restarts. On one machine its restart count separates the
    attempts. Several machines may count differently, so there each attempt needs its own store.
    """
    one_machine = os.environ.get("LOCAL_WORLD_SIZE") == str(ranks)
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if shared and not one_machine and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        raise InvalidValueError(
            "--max-restarts",
            os.environ["TORCHELASTIC_MAX_RESTARTS"],
            "0 on several machines, where a restart would find the addresses of dead processes",
            "or set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun",
        )
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if one_machine else "any"
    address = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    attempt = dist.PrefixStore(f"attempt {count}", _store(*address, rank, ranks))
    joins = attempt.add(f"joined by {rank}", 1)
    return dist.PrefixStore(f"group {joins}", attempt)


@cache
def _store(*address: str | int | None) -> dist.Store:
    """Open the store at an address; it is cached, since later process groups of this process use it too."""
    store: dist.Store = next(dist.rendezvous("env://", timeout=TIMEOUT))[0]
    return store
