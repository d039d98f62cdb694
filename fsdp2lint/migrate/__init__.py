"""The migration from FSDP1 to FSDP2: what there is of FSDP1, what the codemods make of it, and the account of both."""
