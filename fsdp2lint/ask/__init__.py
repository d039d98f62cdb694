"""What rules and codemods ask of a whole program: its FSDP1 symbols, its wrapped models, what never runs."""
