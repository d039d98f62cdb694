"""The names of what wraps and shards models."""

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
FSDP_MODULE = "torch.distributed.fsdp.FSDPModule"
DDP = "torch.nn.parallel.DistributedDataParallel"
DTENSOR = "torch.distributed.tensor.DTensor"
