"""Uses of FSDP1, which `fsdp2lint migrate` rewrites."""
