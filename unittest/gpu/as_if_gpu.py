"""A pytest plugin, ``-p as_if_gpu``: tests for a GPU are collected where torch sees none.

Nothing can be run with it.  What the files import and compute before their first test is.
"""

import torch

torch.cuda.is_available = lambda: True
torch.cuda.get_device_capability = lambda device=None: (9, 0)
