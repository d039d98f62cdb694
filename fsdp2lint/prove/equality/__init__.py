"""Whether two runs are equal: their steps, their final values, and the checkpoints that they wrote.

``results`` says what comes out. ``steps`` compares what the ranks reported. ``apart`` is a process of its
own that imports PyTorch and compares tensors, so that whoever asks does not have to.
"""
