"""What all ranks must do together: collectives, meshes, devices, and data."""
