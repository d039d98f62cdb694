"""What a run of a training script is, as data: values, guards, events, and the trace of them."""
