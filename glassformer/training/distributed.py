"""One process or many behind one seam: the loop reads the same whether it runs alone, by DDP or by FSDP.

Gradients are summed over ranks, never averaged: the loss is summed too, and divided once by the units of all
ranks, so that ranks times accumulation is one big batch. A step of the loop:

    units = parallel.total(units_of_my_batches)
    for n, batch in enumerate(my_batches):
        with parallel.accumulating(module, last=n + 1 == len(my_batches)):
            module(**batch).backward()
    norm = parallel.norm(module.parameters()) / units

Every rank builds the same model from the same seed, and makes these calls in the same order as the others.
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
from glassformer.errors import GlassformerError
from glassformer.training.learner import running_statistics

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Alone:
    """One process: nothing to share, no one to wait for. The others keep its promises among several."""

    device: torch.device
    rank: int = 0
    ranks: int = 1
    local_rank: int = 0

    @property
    def main(self) -> bool:
        """Whether this rank is the one that writes and prints."""
        return self.rank == 0

    def wrap(self, learner: nn.Module) -> nn.Module:
        """The module the loop trains, on this rank's device. Its forward gives tensors."""
        return learner.to(self.device)

    def inner(self, module: nn.Module) -> nn.Module:
        """The learner inside what `wrap` gave."""
        return module

    def gathered(self, module: nn.Module) -> AbstractContextManager[None]:
        """While it lasts the weights are whole on every rank, to be run and saved without the others.

        Every rank enters and leaves it.
        """
        return nullcontext()

    def accumulating(self, module: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Around one micro-batch, forward and backward: the ranks' gradients meet in the last one only."""
        return nullcontext()

    def settle(self, module: nn.Module) -> None:
        """After each step: running statistics of the batches become those of all ranks' batches."""

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over ranks."""
        return tensor.detach().clone()

    def agree(self, flag: bool) -> bool:
        """True on every rank as soon as it is on one."""
        return flag

    def meet(self) -> None:
        """Wait until every rank has come here; the first leaves last, for it may keep the others' store."""

    def close(self) -> None:
        """Hang up on the other ranks; after a `meet` none of them listens any more."""

    def norm(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """The length of the whole gradient."""
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def gather(self, tensors: Tensors) -> dict[str, Tensor]:
        """Copies on rank 0's CPU, whole; other ranks get no names. Every rank calls it."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


@dataclass(frozen=True, kw_only=True)
class _Several(Alone):
    """One of the ranks of torch's default process group, which found each other in `store`."""

    store: dist.Store = field(repr=False)

    def settle(self, module: nn.Module) -> None:
        kept = [buffer for buffer in running_statistics(module) if buffer.is_floating_point()]
        if kept:
            mean = self.total(torch.cat([buffer.flatten() for buffer in kept])) / self.ranks
            for buffer, part in zip(kept, mean.split([buffer.numel() for buffer in kept]), strict=True):
                buffer.copy_(part.view_as(buffer))

    def total(self, tensor: Tensor) -> Tensor:
        summed = tensor.detach().to(self.device, copy=True)
        dist.all_reduce(summed)
        return summed.to(tensor.device)

    def agree(self, flag: bool) -> bool:
        return bool(self.total(torch.tensor(int(flag))))

    def meet(self) -> None:
        # In the store: a rank whose part of a sum is done may hang up while another still waits for it.
        _counted(self.store, "came", self.ranks)
        self.store.wait(["all came"], PATIENCE)
        if not self.main:
            _counted(self.store, "left", self.ranks - 1)
        elif self.ranks > 1:  # the store may live in this process
            self.store.wait(["all left"], PATIENCE)

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        # Threads that listen to the other ranks end with the last that holds the group; where they outlive
        # the interpreter, they can take the process down. Wrapped models hold the group, in circles.
        gc.collect()

    def gather(self, tensors: Tensors) -> dict[str, Tensor]:
        found = {}
        for name, tensor in tensors.items():  # one at a time is whole on the device
            value = tensor.detach()
            value = value.full_tensor() if isinstance(value, DTensor) else value
            if self.main:
                found[name] = value.to("cpu", copy=True)
        return found


@dataclass(frozen=True, kw_only=True)
class Ddp(_Several):
    """Every rank holds the whole model; gradients are summed while the backward still runs."""

    def wrap(self, learner: nn.Module) -> nn.Module:
        words = signature(DistributedDataParallel).parameters
        renamed = "forward_sync_buffers"  # what later releases of torch call broadcast_buffers
        buffers: Any = {renamed if renamed in words else "broadcast_buffers": False}
        wrapped = DistributedDataParallel(
            learner.to(self.device),
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **buffers,  # tables of positions never change, and `settle` sees to statistics
        )
        wrapped.register_comm_hook(None, _summed)
        return wrapped

    def inner(self, module: nn.Module) -> nn.Module:
        return cast(nn.Module, module.module)

    def accumulating(self, module: nn.Module, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else cast(Any, module).no_sync()


@dataclass(frozen=True, kw_only=True)
class Fsdp(_Several):
    """Every rank holds a slice of each weight; those of a block are whole only while it runs."""

    mesh: DeviceMesh = field(repr=False)

    def close(self) -> None:
        # torch remembers each mesh it has seen for as long as the process lives, and with it the group
        getattr(self.mesh, "_pg_registry", {}).clear()
        super().close()

    def wrap(self, learner: nn.Module) -> nn.Module:
        for block in [module for module in learner.modules() if isinstance(module, Block)]:
            fully_shard(block, mesh=self.mesh)
        # All the rest is one group, so a matrix tied between both ends stays one parameter.
        fully_shard(learner, mesh=self.mesh)
        for part in _parts(learner):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        return learner

    @contextmanager
    def gathered(self, module: nn.Module) -> Iterator[None]:
        for part in _parts(module):
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        # Asked for a state dict, FSDP goes back to slices, which one rank alone could not put together.
        hooks = [(held, dict(held)) for held in (part._state_dict_pre_hooks for part in module.modules())]
        for held, _ in hooks:
            held.clear()
        # A CPU's weights may be lent to numpy, and memory that was can no longer be let go of: lend copies.
        lent = [(weight, weight.data) for weight in module.parameters() if weight.device.type == "cpu"]
        for weight, data in lent:
            weight.data = data.clone()
        try:
            yield
        finally:
            for weight, data in lent:
                weight.data = data
            for held, kept in hooks:
                held.update(kept)
            for part in _parts(module):
                part.reshard()
                # The root's weights are needed again as soon as the backward begins.
                part.set_reshard_after_forward(part is not module, recurse=False)

    @contextmanager
    def accumulating(self, module: nn.Module, last: bool) -> Iterator[None]:
        root = cast(FSDPModule, module)
        root.set_requires_gradient_sync(last)
        root.set_is_last_backward(last)
        yield


Parallel = Alone | Ddp | Fsdp
Kind = Literal["auto", "none", "ddp", "fsdp"]
PATIENCE = timedelta(hours=4)  # how long a rank waits for another, as while rank 0 prepares a large corpus


def parallel_from_environment(kind: Kind, device: torch.device | str) -> Parallel:
    """Join the ranks that torchrun started: gloo between CPUs, NCCL between GPUs.

    "auto" is alone for one process and DDP for more. FSDP may be tried on one process without torchrun.
    """
    device = torch.device(device)
    launched = "WORLD_SIZE" in os.environ
    rank, ranks, local_rank = (_number(name, default) for name, default in _PLACE)
    if kind == "ddp" and not launched:
        raise GlassformerError(
            "training.parallel is ddp but this process was not started by torchrun; start it with "
            "torchrun --nproc-per-node GPUS -m glassformer train RECIPE, or set training.parallel to none."
        )
    if kind == "none" and ranks > 1:
        raise GlassformerError(
            f"training.parallel is none but torchrun started {ranks} processes, which would all do the same "
            "work; set it to ddp or fsdp, or start one process."
        )
    if kind == "none" or (kind == "auto" and ranks == 1):
        return Alone(device=device)
    device = _own(device, local_rank)
    backend = "nccl" if device.type == "cuda" else "gloo"
    store = _joined(rank, ranks) if launched else dist.HashStore()
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    if kind == "fsdp":
        mesh = init_device_mesh(device.type, (ranks,))
        return Fsdp(device=device, rank=rank, ranks=ranks, local_rank=local_rank, store=store, mesh=mesh)
    return Ddp(device=device, rank=rank, ranks=ranks, local_rank=local_rank, store=store)


def _counted(store: dist.Store, what: str, ranks: int) -> None:
    """One rank more; the last of them says so."""
    if store.add(what, 1) == ranks:
        store.set(f"all {what}", "")


def _parts(module: nn.Module) -> list[FSDPModule]:
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def _summed(_, bucket):  # DDP would have classes as annotations, or none
    """DDP divides by the ranks unless told how to reduce; here the sum itself is wanted."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


_PLACE = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise GlassformerError(f"The environment's {name} is {text!r}, not a number; start with torchrun.")
    return int(text)


def _joined(rank: int, ranks: int) -> dist.Store:
    """Where the ranks leave their addresses, apart from what those of another group have left there.

    A process that trains again joins again, as do the others: each counts its own times. torchrun keeps one
    store over its restarts, too. On one machine its count of them tells attempts apart; several machines do
    not count alike, so there each attempt needs a store of its own.
    """
    together = os.environ.get("LOCAL_WORLD_SIZE") == str(ranks)
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if kept and not together and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        raise GlassformerError(
            "Restarts on several machines find the addresses of processes that died; set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 where torchrun is started, or leave --max-restarts at 0."
        )
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if together else "any"
    place = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    attempt = dist.PrefixStore(f"attempt {count}", _store(*place, rank, ranks))
    times = attempt.add(f"joined by {rank}", 1)
    return dist.PrefixStore(f"group {times}", attempt)


@cache
def _store(*place: str | int | None) -> dist.Store:
    """The store at a place, kept as long as the process lives.

    Where it lives in the first rank, another that joins again may still find it there, and must not lose it.
    """
    store: dist.Store = next(dist.rendezvous("env://", timeout=PATIENCE))[0]
    return store


def _own(device: torch.device, local_rank: int) -> torch.device:
    """This process's own GPU, or the CPU that all share."""
    if device.type != "cuda":
        return device
    found = torch.cuda.device_count()
    if local_rank >= found:
        raise GlassformerError(
            f"This machine shows {found} GPUs and this is process {local_rank} on it, counted from 0; "
            f"start torchrun with --nproc-per-node {found} or fewer."
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
