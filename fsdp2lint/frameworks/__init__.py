"""The settings files of frameworks: how they ask for FSDP, what of it is wrong, and how version 2 spells it."""
